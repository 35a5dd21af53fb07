"""torchrun whose stores listen on the one address that the ranks use, where PyTorch's listen on all of a machine's.

Called like `python -m torch.distributed.run`. Whoever reaches a store can read and change what ranks agree on.
"""

import socket
from collections.abc import Callable
from typing import Any

from torch import distributed
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous, static_tcp_rendezvous
from torch.distributed.run import main

Store = distributed.TCPStore


def listening_on_its_host(store: Callable[..., Store] = Store) -> Callable[..., Store]:
    """Give a maker of stores that binds a server to the address of its host name alone; clients are made as ever."""

    def made(
        host_name: str, port: int, world_size: int | None = None, is_master: bool = False, *others: Any, **named: Any
    ) -> Store:
        if not is_master:
            return store(host_name, port, world_size, False, *others, **named)
        family, kind, protocol, _, address = socket.getaddrinfo(host_name, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            bound = listener.getsockname()[1]
            # The store takes the file descriptor over and closes it.
            return store(host_name, bound, world_size, True, *others, master_listen_fd=listener.detach(), **named)

    return made


if __name__ == "__main__":
    bound_store = listening_on_its_host()
    c10d_rendezvous_backend.TCPStore = bound_store  # type: ignore[misc,assignment]
    static_tcp_rendezvous.TCPStore = bound_store  # type: ignore[misc,assignment]
    dynamic_rendezvous.dist.TCPStore = bound_store  # type: ignore[misc,assignment]
    main()

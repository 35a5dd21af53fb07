"""What is removed from a command or a message as a secret, and what stays although it sounds like one."""

import pytest

from multicard.core.secrets import arguments_without_secrets, secret_parameters, without_secrets


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        # Passwords and secrets may be digits alone; tokens and keys are not, for their options count tokens, too.
        (["--password", "12345"], ["--password", "removed"]),
        (["--pw=1234", "--passwd=two words"], ["--pw=removed", "--passwd=removed"]),
        (["--client-secret", "42"], ["--client-secret", "removed"]),
        (["--token", "512"], ["--token", "512"]),
        (["--api-key=1e5"], ["--api-key=1e5"]),
        # Of a name that may be harmless, the value decides.
        (["--wandb-key", "0f1e2d3c4b5a"], ["--wandb-key", "removed"]),
        (["--wandb-key", "12345678"], ["--wandb-key", "12345678"]),
        (["--prompt-key", "question"], ["--prompt-key", "question"]),
        (["--pad-token", "pad0pad0"], ["--pad-token", "pad0pad0"]),
        # A switch, a name in braces, the next option and the first argument are no values of the option.
        (["--password", "true"], ["--password", "true"]),
        (["--password", "{p}"], ["--password", "{p}"]),
        (["--password", "--verbose"], ["--password", "--verbose"]),
        (["hunter2", "--password"], ["hunter2", "--password"]),
        (["wandb.apiKey=abc123", "API_KEY=abc123"], ["wandb.apiKey=removed", "API_KEY=removed"]),
        (["password", "abc123"], ["password", "abc123"]),
        # Names in braces stay, since they distinguish commands.
        (["--password=a{p}b{q}"], ["--password=removed{p}{q}"]),
    ],
)
def test_the_value_of_an_option_is_removed_by_its_name(arguments: list[str], kept: list[str]) -> None:
    assert arguments_without_secrets(arguments) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("failed: --token abc", "failed: --token removed"),
        ("token=abc and key_dim=64", "token=removed and key_dim=64"),
        ("token:abc", "token:removed"),
        # After a colon and a blank comes a word more often than a secret, unless it is quoted or looks like a key.
        ("unexpected token: abc", "unexpected token: abc"),
        ("token: 'abc'", "token: removed"),
        ("token: abcd1234", "token: removed"),
        ("password: abc", "password: removed"),
        ("token=''", "token=''"),
        ("https://ada:hunter2@host/x", "https://host/x"),
        ("https://{user}:hunter2@host/x", "https://{user}host/x"),
        ("Basic 0123456789 and basic training", "Basic removed and basic training"),
    ],
)
def test_what_a_text_states_by_name_or_form_is_removed(text: str, kept: str) -> None:
    assert without_secrets(text) == kept
    assert without_secrets(kept) == kept


def test_parameters_in_place_of_secrets_are_named() -> None:
    assert secret_parameters(["--password", "{p}", "--batch", "{b}", "--token={t}", "--prompt-key", "{k}"]) == {
        "p",
        "t",
        "k",
    }
    assert secret_parameters(["{script}", "--out", "{out}"]) == set()

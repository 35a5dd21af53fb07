"""Detect secrets by the name of a variable or option, or by the form of a value; and remove secrets from text."""

import re
from collections.abc import Sequence

REMOVED = "removed"  # the word that replaces a secret

# The name of a secret variable has a word that ends like this, where words are separated by `_`. HF_TOKEN and GHTOKEN
# match; MAX_TOKENS and TOKENIZER do not.
SECRET_VARIABLE = re.compile(
    r"(?:token|secrets?|passw(?:or)?ds?|passphrases?|keys?|credentials?|auth|authorization|authentication|jwt|cookies?"
    r"|(?<=_)(?:pwd|dsn|pat)$)\d*(?![a-z\d])|(?:api|access|auth|refresh)_?tokens",
    re.IGNORECASE,
)
# Parts of names that would match, but name no secret: keys of an entry or a cache, tokens of a vocabulary, and the
# partition key of a network (NCCL_IB_PKEY).
SETTING = re.compile(
    r"(?<![a-z\d])(?:(?:cache|column|dataset|feature|image|input|label|map|metric|sort|target|text)_keys?|ib_pkey"
    r"|(?:audio|begin|bos|cls|end|eos|image|mask|pad|sep|special|start|stop|unk|video)_tokens?|keys?_values?)(?![a-z\d])",
    re.IGNORECASE,
)
# Keys of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, NVIDIA and Google, and JSON web tokens, by their beginnings.
# hf_trainer.py and hf_model_dir do not match: a key of Hugging Face has digits or capitals, and no suffix of a file.
# sk-learn-1.2.3 in /opt/sk-learn-1.2.3 does not match either, because it is a folder in a path.
TOKEN = re.compile(
    r"\b(?:hf_(?=[\w.-]*[A-Z0-9])(?![\w.-]*\.(?:py|sh|ya?ml|json|toml)\b)|gh[oprsu]_|github_pat_|glpat-|(?<!\w/)sk-"
    r"|xox[a-z]-|A[KS]IA(?=[A-Z0-9]{8})|AIza|nvapi-|eyJ)[\w.-]{8,}"
)
# One of four: a token that is not part of a path or a longer word; a token that is the login of a URL; a URL with a
# password; the beginning of a private key.
STANDALONE_TOKEN = re.compile(
    rf"(?<![\w/.-]){TOKEN.pattern}|(?<=://){TOKEN.pattern}(?::[^\s/@]*)?@|://[^\s/:@]*:[^\s/@]+@"
    r"|-----BEGIN [A-Z ]*PRIVATE"
)
# Values that are no secret, whatever the name of the variable: they switch something on or off. An empty value and a
# single digit are among them.
SWITCH = re.compile(r"\d?|true|false|yes|no|on|off", re.IGNORECASE)


def is_named_as_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret. In doubt it counts as one."""
    return bool(SECRET_VARIABLE.search(SETTING.sub("", name)))


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or by its value."""
    return bool((is_named_as_secret(name) and not SWITCH.fullmatch(value)) or STANDALONE_TOKEN.search(value))


# Names of options and of parameters of scripts that can only name a secret. The words of `SECRET_VARIABLE` occur in
# options for harmless things more often than in variables, such as for columns (`--prompt-key question`). So the value
# of an option whose name matches only `SECRET_VARIABLE` counts as a secret only if it looks like a key (`LIKE_KEY`).
SURE_NAME = re.compile(
    r"(?:^|_)(?:\w*passw(?:or)?ds?|passphrases?|pwd|pw|secrets?|credentials?|dsn|pat|token|jwt"
    r"|(?:access|account|api|app|auth|client|encryption|license|private|secret|signing|ssh)_?(?:keys?|tokens?))$"
)
LIKE_KEY = re.compile(r"(?=.*\d)[\w.~+/=-]{8,}")
NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
# A name in braces stands for a parameter of a command, such as {batch}. Doubled braces are text.
NAME_IN_BRACES = re.compile(r"(?<!\{)\{\w+\}(?!\})")

OPTION = re.compile(r"--?[A-Za-z][\w.-]*|--?[A-Za-z]")
ASSIGNMENT = re.compile(r"(?P<name>[-+]{0,2}[A-Za-z][\w./-]*)=(?P<value>.+)", re.DOTALL)
# In running text, a name and its value that are joined by = or :, or an option and its value after a blank.
STATED = re.compile(
    r"(?:(?<![\w.-])(?P<option>--?[A-Za-z][\w.-]*)(?P<blank>\s+)(?!-)"
    r"|(?<![\w.])(?P<name>[A-Za-z_][\w.-]*)(?P<joint>[\"']?\s*[=:]\s*))"
    r"(?P<value>\"[^\"]*\"|'[^']*'|(?:\{\w+\}|[^\s\"',;&|)}\]])+)"
)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE.*?(?:-----END [A-Z ]*-----|$)", re.DOTALL)
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}")
LOGIN = re.compile(r"\b(\w+://)([^\s/]*@)")
SIGNED = re.compile(r"(?i)(?<=[?&])((?:[\w-]*(?:signature|credential|token|key)|sig)=)[^\s&\"']+")


def removed(text: str, by: str = REMOVED) -> str:
    """Return the replacement of a secret `text`: `by`, and then the names in braces that `text` contains.

    The names are kept because they are no secrets, and two commands may differ only by them.

    >>> removed("abc{user}")
    'removed{user}'
    """
    names = [name for name in NAME_IN_BRACES.findall(text) if name not in by]
    return by + "".join(names)


def is_secret_argument(name: str, value: str) -> bool:
    """Return whether a value looks like a secret, given the name of its option, or of its parameter of a script.

    >>> [is_secret_argument(name, "abc123") for name in ("--password", "--db-token", "wandb.apiKey", "--pad-token")]
    [True, True, True, False]
    >>> is_secret_argument("--prompt-key", "question"), is_secret_argument("--wandb-key", "0f1e2d3c4b5a")
    (False, True)
    """
    if SWITCH.fullmatch(value) or NAME_IN_BRACES.fullmatch(value):
        return False
    # "wandb.apiKey" becomes "wandb_api_key".
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])|[^A-Za-z\d]+", "_", name.lstrip("-+"))
    words = SETTING.sub("", words.lower())
    is_number = bool(NUMBER.fullmatch(value))
    if SURE_NAME.search(words):
        may_be_digits = "pass" in words or "pw" in words or "secret" in words
        return may_be_digits or not is_number
    return bool(is_named_as_secret(words) and LIKE_KEY.fullmatch(value)) and not is_number


def arguments_without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with `REMOVED` in place of secrets.

    Secrets are detected by the name of their option, or by their form.

    >>> arguments_without_secrets(["f.py", "--password", "hunter2", "--db-token=abc123", "-n", "3", "{batch}"])
    ['f.py', '--password', 'removed', '--db-token=removed', '-n', '3', '{batch}']
    """
    kept: list[str] = []
    for position, argument in enumerate(arguments):
        before = arguments[position - 1] if position else ""
        assigned = ASSIGNMENT.fullmatch(argument)
        follows_option = OPTION.fullmatch(before) and not argument.startswith("-")
        if follows_option and is_secret_argument(before, argument):
            kept.append(removed(argument))
        elif assigned and is_secret_argument(assigned["name"], assigned["value"]):
            kept.append(f"{assigned['name']}={removed(assigned['value'])}")
        else:
            kept.append(without_secrets(argument))
    return kept


def secret_parameters(arguments: Sequence[str]) -> set[str]:
    """Return the names in braces that take the place of a secret in a command, such as `p` in `--password {p}`.

    >>> secret_parameters(["f.py", "--password", "{p}", "--db-token={t}", "--batch", "{b}"]) == {"p", "t"}
    True
    """
    # Each name in braces is replaced by a value that looks like a key. The names whose values are then removed as
    # secrets are the result.
    key = "a1" * 8
    with_keys = [NAME_IN_BRACES.sub(lambda name: f"{name[0][1:-1]}-{key}", argument) for argument in arguments]
    names = re.findall(rf"(\w+)-{key}", " ".join(with_keys))
    without = " ".join(arguments_without_secrets(with_keys))
    return {name for name in names if f"{name}-{key}" not in without}


def without_secrets(text: str) -> str:
    """Return running text with `REMOVED` in place of secrets, which are detected by their form or the name before them.

    >>> without_secrets("401 for https://ada:hunter2@host/x?sig=abc with token=abc123, Bearer 0123456789, max_tokens=7")
    '401 for https://host/x?sig=removed with token=removed, Bearer removed, max_tokens=7'
    """
    text = PRIVATE_KEY.sub(REMOVED, text)
    text = BEARER.sub(rf"\1 {REMOVED}", text)
    text = LOGIN.sub(lambda login: login[1] + removed(login[2], by=""), text)
    text = SIGNED.sub(rf"\1{REMOVED}", text)
    text = TOKEN.sub(REMOVED, text)
    return _without_stated(text)


def _without_stated(text: str) -> str:
    """Return the text with `REMOVED` in place of values whose names say that they are secret (see `STATED`)."""
    pieces: list[str] = []
    searched_to = 0
    while stated := STATED.search(text, searched_to):
        value_start = stated.start("value")
        pieces.append(text[searched_to:value_start])
        if _states_secret(stated):
            pieces.append(removed(stated["value"]))
            searched_to = stated.end()
        else:
            # The search continues within the value, which may name a secret itself: "failed: --token abc".
            searched_to = value_start
    pieces.append(text[searched_to:])
    return "".join(pieces)


def _states_secret(stated: re.Match[str]) -> bool:
    """Return whether the value in a match of `STATED` is a secret, and was not removed before."""
    name = stated["option"] or stated["name"]
    joint = stated["blank"] or stated["joint"]
    value = stated["value"].strip("\"'")
    if not value or value == REMOVED:
        return False
    # A colon and a blank are followed by a word of prose more often than by a secret: "unexpected token: <eos>". So
    # such a value counts only if it is quoted, looks like a key, or follows a name with "pass" in it.
    is_quoted = value != stated["value"]
    in_prose = not is_quoted and joint.strip() == ":" and joint != ":"
    looks_secret = LIKE_KEY.fullmatch(value) or re.search(r"(?i)pass(?!_)", name)
    if in_prose and not looks_secret:
        return False
    return is_secret_argument(name, value)

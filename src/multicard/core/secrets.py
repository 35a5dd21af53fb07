"""Detect secrets by the name of a variable or option, or by the form of a value; and remove them from text."""

import re
from collections.abc import Sequence

REMOVED = "removed"  # replaces a secret

# Endings of a word in a variable's name, words being separated by `_`: HF_TOKEN and GHTOKEN are secrets, MAX_TOKENS and
# TOKENIZER are not.
SECRET_VARIABLE = re.compile(
    r"(?:token|secrets?|passw(?:or)?ds?|passphrases?|keys?|credentials?|auth|authorization|authentication|jwt|cookies?"
    r"|(?<=_)(?:pwd|dsn|pat)$)\d*(?![a-z\d])|(?:api|access|auth|refresh)_?tokens",
    re.IGNORECASE,
)
# Names that are not secret although they match: keys of an entry or a cache, tokens of a vocabulary, and the partition
# key of a network (NCCL_IB_PKEY).
SETTING = re.compile(
    r"(?<![a-z\d])(?:(?:cache|column|dataset|feature|image|input|label|map|metric|sort|target|text)_keys?|ib_pkey"
    r"|(?:audio|begin|bos|cls|end|eos|image|mask|pad|sep|special|start|stop|unk|video)_tokens?|keys?_values?)(?![a-z\d])",
    re.IGNORECASE,
)
# Keys of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, NVIDIA and Google, and JSON web tokens, by their beginnings.
# hf_trainer.py and hf_model_dir are not keys: those of Hugging Face have digits or capitals, and no suffix of a file.
# Neither is a folder of a path, such as sk-learn-1.2.3 in /opt/sk-learn-1.2.3.
TOKEN = re.compile(
    r"\b(?:hf_(?=[\w.-]*[A-Z0-9])(?![\w.-]*\.(?:py|sh|ya?ml|json|toml)\b)|gh[oprsu]_|github_pat_|glpat-|(?<!\w/)sk-"
    r"|xox[a-z]-|A[KS]IA(?=[A-Z0-9]{8})|AIza|nvapi-|eyJ)[\w.-]{8,}"
)
# A token that is not part of a path such as /opt/sk-learn-1.2.3/bin, or that is the login of a URL; a URL with a
# password; a private key.
STANDALONE_TOKEN = re.compile(
    rf"(?<![\w/.-]){TOKEN.pattern}|(?<=://){TOKEN.pattern}(?::[^\s/@]*)?@|://[^\s/:@]*:[^\s/@]+@"
    r"|-----BEGIN [A-Z ]*PRIVATE"
)
# Values of settings: a variable with such a value is a switch, whatever its name.
SWITCH = re.compile(r"\d?|true|false|yes|no|on|off", re.IGNORECASE)


def is_named_as_secret(name: str) -> bool:
    """Return whether the name of a variable looks like that of a secret; in doubt it does."""
    return bool(SECRET_VARIABLE.search(SETTING.sub("", name)))


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or by its value."""
    return bool((is_named_as_secret(name) and not SWITCH.fullmatch(value)) or STANDALONE_TOKEN.search(value))


# Names of options and of parameters of scripts that can name nothing but a secret. Options use the words of
# `SECRET_VARIABLE` for more harmless things than variables do, such as columns (`--prompt-key question`): with another
# name that matches, the value has to look like a key, too.
SURE_NAME = re.compile(
    r"(?:^|_)(?:\w*passw(?:or)?ds?|passphrases?|pwd|pw|secrets?|credentials?|dsn|pat|token|jwt"
    r"|(?:access|account|api|app|auth|client|encryption|license|private|secret|signing|ssh)_?(?:keys?|tokens?))$"
)
LIKE_KEY = re.compile(r"(?=.*\d)[\w.~+/=-]{8,}")
NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
NAME_IN_BRACES = re.compile(r"(?<!\{)\{\w+\}(?!\})")  # a parameter of a command; doubled braces are text

OPTION = re.compile(r"--?[A-Za-z][\w.-]*|--?[A-Za-z]")
ASSIGNMENT = re.compile(r"(?P<name>[-+]{0,2}[A-Za-z][\w./-]*)=(?P<value>.+)", re.DOTALL)
# A name and its value in running text, joined by = or :, or an option and its value after a blank.
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
    """Return the replacement of a removed text: `by`, and its names in braces, which distinguish commands."""
    names = [name for name in NAME_IN_BRACES.findall(text) if name not in by]
    return by + "".join(names)


def is_secret_argument(name: str, value: str) -> bool:
    """Return whether the value of an option, or of a script's parameter of that name, looks like a secret.

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
    """Return the arguments of a command with `REMOVED` for secrets, by the name of their option or by their form.

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
    """Return the names in braces that stand in a command where a secret would, such as `p` of `--password {p}`.

    >>> secret_parameters(["f.py", "--password", "{p}", "--db-token={t}", "--batch", "{b}"]) == {"p", "t"}
    True
    """
    # A value that looks like a key replaces each name: what is removed then stood where a secret would.
    key = "a1" * 8
    with_keys = [NAME_IN_BRACES.sub(lambda name: f"{name[0][1:-1]}-{key}", argument) for argument in arguments]
    names = re.findall(rf"(\w+)-{key}", " ".join(with_keys))
    without = " ".join(arguments_without_secrets(with_keys))
    return {name for name in names if f"{name}-{key}" not in without}


def without_secrets(text: str) -> str:
    """Return running text with `REMOVED` for secrets, by their form or by the name before them.

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
    """Return the text with `REMOVED` for the secret values of names that it states (`STATED`)."""
    pieces: list[str] = []
    searched_to = 0
    while stated := STATED.search(text, searched_to):
        value_start = stated.start("value")
        pieces.append(text[searched_to:value_start])
        if _states_secret(stated):
            pieces.append(removed(stated["value"]))
            searched_to = stated.end()
        else:
            # The search goes on in the value, which may itself name a secret: "failed: --token abc".
            searched_to = value_start
    pieces.append(text[searched_to:])
    return "".join(pieces)


def _states_secret(stated: re.Match[str]) -> bool:
    """Return whether a match of `STATED` states a secret that was not removed yet."""
    name = stated["option"] or stated["name"]
    joint = stated["blank"] or stated["joint"]
    value = stated["value"].strip("\"'")
    if not value or value == REMOVED:
        return False
    # After a colon and a blank follows a word of prose more often than a secret: "unexpected token: <eos>".
    is_quoted = value != stated["value"]
    in_prose = not is_quoted and joint.strip() == ":" and joint != ":"
    looks_secret = LIKE_KEY.fullmatch(value) or re.search(r"(?i)pass(?!_)", name)
    if in_prose and not looks_secret:
        return False
    return is_secret_argument(name, value)

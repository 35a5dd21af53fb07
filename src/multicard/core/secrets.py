"""What tells a secret: the name of a variable or an option, or the form of a value; and text without any."""

import re
from collections.abc import Sequence

REMOVED = "removed"  # in place of a secret

# A word of the name, between `_`, that ends so: HF_TOKEN and GHTOKEN are secrets, MAX_TOKENS and TOKENIZER are none.
SECRET_VARIABLE = re.compile(
    r"(?:token|secrets?|passw(?:or)?ds?|passphrases?|keys?|credentials?|auth|authorization|authentication|jwt|cookies?"
    r"|(?<=_)(?:pwd|dsn|pat)$)\d*(?![a-z\d])|(?:api|access|auth|refresh)_?tokens",
    re.IGNORECASE,
)
# Keys of an entry or a cache, tokens of a vocabulary, and the partition key of a network (NCCL_IB_PKEY), which nobody
# hides.
SETTING = re.compile(
    r"(?<![a-z\d])(?:(?:cache|column|dataset|feature|image|input|label|map|metric|sort|target|text)_keys?|ib_pkey"
    r"|(?:audio|begin|bos|cls|end|eos|image|mask|pad|sep|special|start|stop|unk|video)_tokens?|keys?_values?)(?![a-z\d])",
    re.IGNORECASE,
)
# Keys of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, NVIDIA and Google, and JSON web tokens, by how they begin.
# hf_trainer.py and hf_model_dir are none: the keys of Hugging Face have digits or capitals, and no suffix of a file.
# Nor is a folder of a path, such as sk-learn-1.2.3 in /opt/sk-learn-1.2.3.
TOKEN = re.compile(
    r"\b(?:hf_(?=[\w.-]*[A-Z0-9])(?![\w.-]*\.(?:py|sh|ya?ml|json|toml)\b)|gh[oprsu]_|github_pat_|glpat-|(?<!\w/)sk-"
    r"|xox[a-z]-|A[KS]IA(?=[A-Z0-9]{8})|AIza|nvapi-|eyJ)[\w.-]{8,}"
)
# One that is not part of a path, such as /opt/sk-learn-1.2.3/bin, or that is the login of a URL; a URL with a password;
# a private key.
STANDALONE_TOKEN = re.compile(
    rf"(?<![\w/.-]){TOKEN.pattern}|(?<=://){TOKEN.pattern}(?::[^\s/@]*)?@|://[^\s/:@]*:[^\s/@]+@"
    r"|-----BEGIN [A-Z ]*PRIVATE"
)
SWITCH = re.compile(r"\d?|true|false|yes|no|on|off", re.IGNORECASE)  # values of settings, such as of one about tokens


def is_named_as_secret(name: str) -> bool:
    """Whether the name of a variable looks like that of a secret; where it may be one, it does."""
    return bool(SECRET_VARIABLE.search(SETTING.sub("", name)))


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by its name or by its value."""
    return bool((is_named_as_secret(name) and not SWITCH.fullmatch(value)) or STANDALONE_TOKEN.search(value))


# Of options and of parameters of scripts, which name more harmless things by these words than variables do, such as
# columns and dimensions (`--prompt-key question`). So those that can name nothing but a secret are told from those that
# may, whose value has to look like one, too.
SURE_NAME = re.compile(
    r"(?:^|_)(?:\w*passw(?:or)?ds?|passphrases?|pwd|pw|secrets?|credentials?|dsn|pat|token|jwt"
    r"|(?:access|account|api|app|auth|client|encryption|license|private|secret|signing|ssh)_?(?:keys?|tokens?))$"
)
LIKE_KEY = re.compile(r"(?=.*\d)[\w.~+/=-]{8,}")
NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
NAME_IN_BRACES = re.compile(r"(?<!\{)\{\w+\}(?!\})")  # in a command, which a parameter takes the place of

OPTION = re.compile(r"--?[A-Za-z][\w.-]*|--?[A-Za-z]")
ASSIGNMENT = re.compile(r"(?P<name>[-+]{0,2}[A-Za-z][\w./-]*)=(?P<value>.+)", re.DOTALL)
# In running text: a name, what joins it to a value, and the value. An option's value may follow it after a blank.
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
    """Return what stands for a text that was removed: names in braces stay, without which a command is another one."""
    return by + "".join(name for name in NAME_IN_BRACES.findall(text) if name not in by)


def is_secret_argument(name: str, value: str) -> bool:
    """True if the value of an option, or of a script's parameter of that name, looks like a secret.

    >>> [is_secret_argument(name, "abc123") for name in ("--password", "--db-token", "wandb.apiKey", "--pad-token")]
    [True, True, True, False]
    >>> is_secret_argument("--prompt-key", "question"), is_secret_argument("--wandb-key", "0f1e2d3c4b5a")
    (False, True)
    """
    if SWITCH.fullmatch(value) or NAME_IN_BRACES.fullmatch(value):
        return False
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])|[^A-Za-z\d]+", "_", name.lstrip("-+"))
    words = SETTING.sub("", words.lower())
    if SURE_NAME.search(words):
        return not NUMBER.fullmatch(value) or "pass" in words or "pw" in words or "secret" in words
    return bool(is_named_as_secret(words) and LIKE_KEY.fullmatch(value) and not NUMBER.fullmatch(value))


def arguments_without_secrets(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command with `REMOVED` in the place of secrets: by the name of their option, or by their form.

    >>> arguments_without_secrets(["f.py", "--password", "hunter2", "--db-token=abc123", "-n", "3", "{batch}"])
    ['f.py', '--password', 'removed', '--db-token=removed', '-n', '3', '{batch}']
    """
    found: list[str] = []
    for position, argument in enumerate(arguments):
        before = arguments[position - 1] if position else ""
        assigned = ASSIGNMENT.fullmatch(argument)
        follows_option = OPTION.fullmatch(before) and not argument.startswith("-")
        if follows_option and is_secret_argument(before, argument):
            found.append(removed(argument))
        elif assigned and is_secret_argument(assigned["name"], assigned["value"]):
            found.append(f"{assigned['name']}={removed(assigned['value'])}")
        else:
            found.append(without_secrets(argument))
    return found


def secret_parameters(arguments: Sequence[str]) -> set[str]:
    """Names in braces that stand in a command where a secret would, such as `p` of `--password {p}`.

    >>> secret_parameters(["f.py", "--password", "{p}", "--db-token={t}", "--batch", "{b}"]) == {"p", "t"}
    True
    """
    stand_in = "a1" * 8
    named = [NAME_IN_BRACES.sub(lambda name: f"{name[0][1:-1]}-{stand_in}", each) for each in arguments]
    joined = " ".join(arguments_without_secrets(named))
    every = re.findall(rf"(\w+)-{stand_in}", " ".join(named))
    return {name for name in every if f"{name}-{stand_in}" not in joined}


def without_secrets(text: str) -> str:
    """Running text with `REMOVED` in the place of secrets: by their form, or by the name that is stated before them.

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
    """The text without the values of `STATED` that are secrets."""
    pieces, done = [], 0
    while stated := STATED.search(text, done):
        start = stated.start("value")
        pieces.append(text[done:start])
        # What is no secret may begin with the name of one: "failed: --token abc".
        is_secret = _states_secret(stated)
        pieces += [removed(stated["value"])] if is_secret else []
        done = stated.end() if is_secret else start
    return "".join([*pieces, text[done:]])


def _states_secret(stated: re.Match[str]) -> bool:
    """True if a match of `STATED` states a secret that is still there."""
    name, joint = stated["option"] or stated["name"], stated["blank"] or stated["joint"]
    value = stated["value"].strip("\"'")
    if not value or value == REMOVED:
        return False
    # After a colon in prose a word follows more often than a secret: "unexpected token: <eos>".
    in_prose = value == stated["value"] and joint.strip() == ":" and joint != ":"
    is_word = in_prose and not (LIKE_KEY.fullmatch(value) or re.search(r"(?i)pass(?!_)", name))
    return not is_word and is_secret_argument(name, value)

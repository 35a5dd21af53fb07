"""What tells a secret: the name of a variable, or the form of a value."""

import re

# A word of the name, between `_`, that ends so: HF_TOKEN and GHTOKEN are secrets, MAX_TOKENS and TOKENIZER are none.
SECRET_VARIABLE = re.compile(
    r"(?:token|secrets?|passw(?:or)?ds?|passphrases?|keys?|credentials?|auth|authorization|authentication|jwt|cookies?"
    r"|(?<=_)(?:pwd|dsn|pat)$)\d*(?![a-z\d])|(?:api|access|auth|refresh)_?tokens",
    re.IGNORECASE,
)
# Keys of an entry or a cache, and the partition key of a network (NCCL_IB_PKEY), which nobody hides.
SETTING = re.compile(
    r"(?<![a-z\d])(?:(?:cache|column|dataset|feature|image|input|label|map|metric|sort|target|text)_keys?|ib_pkey"
    r"|keys?_values?)(?![a-z\d])",
    re.IGNORECASE,
)
# Keys of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS and NVIDIA, and JSON web tokens, by how they begin.
# hf_trainer.py and hf_model_dir are none: the keys of Hugging Face have digits or capitals, and no suffix of a file.
TOKEN = re.compile(
    r"\b(?:hf_(?=[\w.-]*[A-Z0-9])(?![\w.-]*\.(?:py|sh|ya?ml|json|toml)\b)|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA"
    r"|nvapi-|eyJ)[\w.-]{8,}"
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

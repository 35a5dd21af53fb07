"""What tells a secret: the name of a variable, or the form of a value."""

import re

# A partition key of a network (NCCL_IB_PKEY) is a number that nobody hides, and tokenizers have settings.
SECRET_VARIABLE = re.compile(
    r"token(?!izer)|secret|passw|passphrase|_pwd$|(?<!_ib_p)key|credential|auth|jwt|cookie|_dsn$", re.IGNORECASE
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


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret, by its name or by its value."""
    named = SECRET_VARIABLE.search(name) and not SWITCH.fullmatch(value)
    return bool(named or STANDALONE_TOKEN.search(value))

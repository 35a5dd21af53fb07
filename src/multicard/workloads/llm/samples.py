"""What a sample of each kind is: the columns it may come in, and the one form in which it is prepared."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, create_model, model_validator

from multicard.experiment.datasets import TextKind

# The roles of messages as those of ShareGPT name them (torchtune reads the same).
SHAREGPT = {"human": "user", "gpt": "assistant"}


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("empty, expected text")
    return text


Words = Annotated[str, AfterValidator(_not_blank)]


def _named(kind: Any, *names: str) -> Any:
    """A column that may have any of the names."""
    return Annotated[kind, Field(validation_alias=AliasChoices(*names))]


class Message(BaseModel):
    """What one side says."""

    role: Annotated[
        _named(Literal["system", "user", "assistant"], "role", "from"),
        BeforeValidator(lambda role: SHAREGPT.get(role, role) if isinstance(role, str) else role),
    ]
    content: _named(str, "content", "value")


def _by_turns(messages: list[Message]) -> list[Message]:
    """Check a conversation: at most one system message, then user and assistant by turns, as torchtune wants it.

    An empty system message, as some published sets have it, is dropped.
    """
    has_system = bool(messages) and messages[0].role == "system"
    for number, message in enumerate(messages[has_system:]):
        expected = "assistant" if number % 2 else "user"
        if message.role != expected:
            place = number + has_system + 1
            raise ValueError(f"message {place}: found the role {message.role}, expected {expected}")
        _not_blank(message.content)
    if len(messages) < 2 + has_system:
        raise ValueError("found no message of the assistant, expected one or more")
    return messages if not has_system or messages[0].content else messages[1:]


Conversation = Annotated[list[Message], AfterValidator(_by_turns)]


class Preference(BaseModel):
    """Two conversations that begin with the same question and end with a good and a bad answer."""

    chosen: _named(Conversation, "chosen", "chosen_conversations")
    rejected: _named(Conversation, "rejected", "rejected_conversations")

    @model_validator(mode="before")
    @classmethod
    def _of_texts(cls, row: Any) -> Any:
        """Make conversations of two texts that answer the column `prompt`."""
        names = ("chosen", "rejected")
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("prompt", *names)):
            return row
        question = {"role": "user", "content": row["prompt"]}
        return {name: [question, {"role": "assistant", "content": row[name]}] for name in names}

    @model_validator(mode="after")
    def _are_comparable(self) -> "Preference":
        for name, messages in (("chosen", self.chosen), ("rejected", self.rejected)):
            if messages[-1].role != "assistant":
                raise ValueError(f"column {name}: the last message is the user's, expected the assistant's")
        one, other = (next(each.content for each in own if each.role == "user") for own in (self.chosen, self.rejected))
        if one != other:
            raise ValueError("chosen and rejected: found different questions, expected the same first message")
        return self


def _columns(**kinds: Any) -> type[BaseModel]:
    return create_model("Columns", **{name: (kind, ...) for name, kind in kinds.items()})


Blank = Annotated[str, BeforeValidator(lambda given: given or "")]  # many instructions need no input
FORMS: dict[TextKind, type[BaseModel]] = {
    "instruction": _columns(instruction=Words, input=Blank, output=Words),
    "chat": _columns(messages=_named(Conversation, "messages", "conversations")),
    "summary": _columns(dialogue=Words, summary=Words),
    "grammar": _columns(input=Words, output=Words),
    "completion": _columns(text=_named(Words, "text", "article", "page")),
    "preference": Preference,
}

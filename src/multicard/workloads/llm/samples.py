"""What a sample of each kind is: the columns it may come in, and the one form in which it is prepared."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from multicard.core.errors import first_fault
from multicard.experiment.datasets import TextKind

# The roles of messages as those of ShareGPT name them (torchtune reads the same).
SHAREGPT = {"human": "user", "gpt": "assistant"}


class Unfit(ValueError):
    """A row that is not a valid sample; its message is the reason."""


class MissingColumns(Unfit):
    """A row without a column that it needs; probably no row of its set has it."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("empty, expected text")
    return text


Words = Annotated[str, AfterValidator(_not_blank)]


class Message(BaseModel):
    """What one side says."""

    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(lambda role: SHAREGPT.get(role, role) if isinstance(role, str) else role),
        Field(validation_alias=AliasChoices("role", "from")),
    ]
    content: Annotated[str, Field(validation_alias=AliasChoices("content", "value"))]


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

    chosen: Annotated[Conversation, Field(validation_alias=AliasChoices("chosen", "chosen_conversations"))]
    rejected: Annotated[Conversation, Field(validation_alias=AliasChoices("rejected", "rejected_conversations"))]

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
        questions = []
        for name, messages in (("chosen", self.chosen), ("rejected", self.rejected)):
            if messages[-1].role != "assistant":
                raise ValueError(f"column {name}: the last message is the user's, expected the assistant's")
            questions.append(next(message.content for message in messages if message.role == "user"))
        if questions[0] != questions[1]:
            raise ValueError("chosen and rejected: found different questions, expected the same first message")
        return self


def _columns(**types: Any) -> type[BaseModel]:
    return create_model("Columns", **{name: (kind, ...) for name, kind in types.items()})


FORMS: dict[TextKind, type[BaseModel]] = {
    # Many instructions need no input.
    "instruction": _columns(
        instruction=Words, input=Annotated[str, BeforeValidator(lambda given: given or "")], output=Words
    ),
    "chat": _columns(
        messages=Annotated[Conversation, Field(validation_alias=AliasChoices("messages", "conversations"))]
    ),
    "summary": _columns(dialogue=Words, summary=Words),
    "grammar": _columns(input=Words, output=Words),
    "completion": _columns(text=Annotated[Words, Field(validation_alias=AliasChoices("text", "article", "page"))]),
    "preference": Preference,
}


def to_sample(kind: TextKind, row: Any) -> dict[str, Any]:
    """Bring a row into the form of its kind; other columns are dropped.

    Raises
    ------
    Unfit
        If columns are missing, or hold what they should not.
    """
    try:
        return FORMS[kind].model_validate(row).model_dump()
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"] == "missing" and len(fault["loc"]) == 1:
            columns = ", ".join(" ".join(str(name).split())[:40] for name in list(row)[:8])
            raise MissingColumns(f"found the columns {columns}, expected {fault['loc'][0]}") from None
        raise Unfit(first_fault(error).replace("Value error, ", "")) from None

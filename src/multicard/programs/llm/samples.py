"""The kinds of samples of texts: the columns in which each may be stored, and the one form in which it is prepared."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, model_validator

from multicard.programs.datasets import TextKind

# Roles of messages by their names in ShareGPT's files. torchtune translates the same names.
SHAREGPT = {"human": "user", "gpt": "assistant"}


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("empty, expected text")
    return text


def _empty_if_missing(text: Any) -> Any:
    return text or ""


def _role(role: Any) -> Any:
    return SHAREGPT.get(role, role) if isinstance(role, str) else role


Words = Annotated[str, AfterValidator(_not_blank)]


class Message(BaseModel):
    """A message of one side of a conversation."""

    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(_role),
        Field(validation_alias=AliasChoices("role", "from")),
    ]
    content: Annotated[str, Field(validation_alias=AliasChoices("content", "value"))]


def _by_turns(messages: list[Message]) -> list[Message]:
    """Check that messages alternate, as torchtune requires: perhaps a system message, then user, assistant, user, ….

    Return the messages, without the system message if it is empty, as in some published sets. Raises `ValueError` if a
    message has the wrong role, if a message of the user or assistant is blank, or if there is none of the assistant.
    """
    has_system = bool(messages) and messages[0].role == "system"
    turns = messages[1:] if has_system else messages
    for number, message in enumerate(turns):
        expected = "assistant" if number % 2 else "user"
        if message.role != expected:
            number_in_all = number + (2 if has_system else 1)
            raise ValueError(f"message {number_in_all}: found the role {message.role}, expected {expected}")
        _not_blank(message.content)
    if len(turns) < 2:
        raise ValueError("found no message of the assistant, expected one or more")
    return turns if has_system and not messages[0].content else messages


Conversation = Annotated[list[Message], AfterValidator(_by_turns)]


class Instruction(BaseModel):
    """A task, with an input that many tasks do not need, and its result."""

    instruction: Words
    input: Annotated[str, BeforeValidator(_empty_if_missing)]
    output: Words


class Chat(BaseModel):
    """A conversation."""

    messages: Annotated[Conversation, Field(validation_alias=AliasChoices("messages", "conversations"))]


class Summary(BaseModel):
    """A dialogue and its summary."""

    dialogue: Words
    summary: Words


class Grammar(BaseModel):
    """A sentence with errors, and the sentence without them."""

    input: Words
    output: Words


class Completion(BaseModel):
    """A running text."""

    text: Annotated[Words, Field(validation_alias=AliasChoices("text", "article", "page"))]


class Preference(BaseModel):
    """Two conversations that begin with the same question and end with a good and a bad answer."""

    chosen: Annotated[Conversation, Field(validation_alias=AliasChoices("chosen", "chosen_conversations"))]
    rejected: Annotated[Conversation, Field(validation_alias=AliasChoices("rejected", "rejected_conversations"))]

    @model_validator(mode="before")
    @classmethod
    def _from_texts(cls, row: Any) -> Any:
        """Make conversations if `prompt`, `chosen` and `rejected` are texts; return any other row unchanged."""
        columns = ("prompt", "chosen", "rejected")
        if not isinstance(row, dict) or not all(isinstance(row.get(column), str) for column in columns):
            return row
        question = {"role": "user", "content": row["prompt"]}
        return {name: [question, {"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")}

    @model_validator(mode="after")
    def _are_comparable(self) -> "Preference":
        for name, messages in (("chosen", self.chosen), ("rejected", self.rejected)):
            if messages[-1].role != "assistant":
                raise ValueError(f"column {name}: the last message is the user's, expected the assistant's")
        if _question(self.chosen) != _question(self.rejected):
            raise ValueError("chosen and rejected: found different questions, expected the same first message")
        return self


def _question(messages: list[Message]) -> str:
    """Return the first message of the user."""
    return next(message.content for message in messages if message.role == "user")


FORMS: dict[TextKind, type[BaseModel]] = {
    "instruction": Instruction,
    "chat": Chat,
    "summary": Summary,
    "grammar": Grammar,
    "completion": Completion,
    "preference": Preference,
}

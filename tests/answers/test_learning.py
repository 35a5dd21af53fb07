"""What decides how much is learned, and how two trainings differ in it."""

from multicard.answers.choice.learning import changes_from, words_of


def test_a_parameter_of_another_technique_is_not_set_and_an_unmeasured_batch_not_known() -> None:
    lora = {"global batch size": None, "technique": "lora"}
    qat = {"global batch size": 64, "technique": "qat", "qat_group": 256}
    assert words_of(changes_from(lora, qat)) == (
        "global batch size: not known → 64, technique: lora → qat, qat_group: not set → 256"
    )

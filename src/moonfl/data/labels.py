"""Check that labels are classes, unless the task is another one (targets.py)."""

from ..errors import InputError

FEW_CLASSES = 20  # so many distinct labels are classes, however few samples there are


def check_classification(location: str, distinct: int, samples: int, example: object) -> None:
    """Raise an InputError if most labels are distinct, like the target of a regression."""
    if distinct > FEW_CLASSES and distinct > samples / 2:
        raise regression_target(
            location, f"{distinct} distinct values in {samples} samples", example
        )


def regression_target(location: str, description: str, example: object) -> InputError:
    """Return the error for labels that look like the target of a regression."""
    return InputError(
        f"{location} has {description} (such as {example}); labels must be classes, not "
        "measurements; to predict numbers, set task=regression"
    )

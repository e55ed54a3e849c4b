"""Names: which columns of a DataFrame are key, op, key group and fields of the value. Pure.

Follows Spark's rule: an exact name wins; else a name that differs in case alone counts, unless
`spark.sql.caseSensitive` is set. Planning does not see that setting and tasks do, so a plan says whether it rests on
the lax rule.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from statelog.errors import InvalidChange
from statelog.schemas.descriptor import Descriptor, HashRule
from statelog.schemas.values.schema import STATE_NAMES, ValueSchema

__all__ = ["Names", "has_key", "match_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The columns of a DataFrame in their order: as `given`, and as the log has them.

    `sequence` is the one that rows of a key are put in sequence by; with `is_extra` it is no part of the change.
    """

    given: tuple[str, ...]
    columns: tuple[str, ...]
    sequence: str | None = None
    is_extra: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether no name differs in case."""
        return self.given == self.columns


def has_key(given: Sequence[str]) -> bool:
    """Whether a DataFrame with these columns has one for the key."""
    return "key" in map(str.lower, given)


def match_names(given: Sequence[str], descriptor: Descriptor, value: ValueSchema, sequence_by: str | None) -> Names:
    """The columns of a write. Raises InvalidChange with what is unknown and what is missing."""
    fields = {field.name for field in value.root.fields} if value.root is not None else set[str]()
    known = {*STATE_NAMES, "value", *fields}
    sequence = None if sequence_by is None else _sequence(given, sequence_by)
    columns = tuple(_matched(name, known) for name in given)
    is_extra = sequence is not None and columns[given.index(sequence)] not in known
    unknown = {name for name in columns if name not in known and not (is_extra and name == sequence)}
    missing = {"key"} - set(columns)
    if descriptor.hash_rule is HashRule.CALLER:
        missing |= {"key_group"} - set(columns)
    if value.is_opaque:
        missing |= {"value"} - set(columns)
    if unknown or missing:
        raise InvalidChange(
            "the columns do not match the log",
            unknown=", ".join(sorted(unknown)),
            missing=", ".join(sorted(missing)),
            expected=", ".join(["key", "op (optional)", *sorted(fields or {"value"})]),
            hint="Select and rename: key, op if there are deletes, and the value",
        )
    if len(set(columns)) != len(columns):
        raise InvalidChange("two columns of one name", columns=", ".join(given), hint="Rename one, or leave it out")
    if sequence is not None and not is_extra:
        sequence = columns[given.index(sequence)]
    return Names(given=tuple(given), columns=columns, sequence=sequence, is_extra=is_extra)


def _matched(name: str, known: Collection[str]) -> str:
    """The known name that is meant, or the name itself if there is none, or more than one."""
    if name in known:
        return name
    alike = [one for one in known if one.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _sequence(given: Sequence[str], wanted: str) -> str:
    found = _matched(wanted, given)
    if found not in given:
        raise InvalidChange(
            f"there is no column {wanted}, which sequenceBy names",
            columns=", ".join(given),
            hint="Name a column that grows with every change of a key; it need not be part of the value",
        )
    return found

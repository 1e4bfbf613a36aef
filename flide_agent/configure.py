"""Settings from where operators write them: flags before environment before a TOML file before the defaults.

All three name the fields of `Settings`: `--set max_queue=64`, `FLIDE_AGENT_MAX_QUEUE=64`, `max_queue = 64`. A name that is no
setting is an error everywhere, since a misspelt limit would not hold.
"""

from __future__ import annotations

import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flide_agent.keys import ENVIRONMENT
from flide_agent.settings import Settings

PREFIX = "FLIDE_AGENT_"
FILE = f"{PREFIX}CONFIG"
UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "K": 10**3, "M": 10**6, "G": 10**9}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Field:
    """One setting. kind: str, int, float, bool or Path. optional: it may be unset. unit: "bytes" or ""."""

    name: str
    kind: type
    optional: bool
    default: Any
    unit: str
    about: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _fields() -> dict[str, Field]:
    hints, out = typing.get_type_hints(Settings, include_extras=True), {}
    for field in msgspec.structs.fields(Settings):
        hint = hints[field.name]
        meta = hint.__metadata__[0]
        kinds = typing.get_args(hint.__origin__) if isinstance(hint.__origin__, types.UnionType) else (hint.__origin__,)
        kind = next(k for k in kinds if k is not type(None))
        unit = (meta.extra_json_schema or {}).get("unit", "")
        out[field.name] = Field(field.name, kind, type(None) in kinds, field.default, unit, meta.description or "")
    return out


FIELDS: Mapping[str, Field] = types.MappingProxyType(_fields())


def size(text: str) -> int:
    """Bytes of 512MiB, 2GiB or 1000000. Raises ValueError."""
    number = text.strip().rstrip("".join(set("kmgtibKMGTIB")))
    unit = text.strip()[len(number) :].upper()
    try:
        value = int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"{text!r} is no size; write 512MiB, 2GiB or a number of bytes") from None
    if value <= 0:
        raise ValueError("must be above 0")
    return value


def value_of(field: Field, given: Any) -> Any:
    """A setting's value from text or from TOML. Raises ValueError."""
    if isinstance(given, str):
        return _from_text(field, given)
    if field.kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, field.kind) or isinstance(given, bool) is not (field.kind is bool):
        raise ValueError(f"{given!r} is no {field.kind.__name__}")
    return given


def _from_text(field: Field, text: str) -> Any:
    if field.unit == "bytes":
        return 0 if text.strip() == "0" else size(text)
    if field.kind is bool:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in _TRUE
    if field.kind is Path:
        return Path(text).expanduser() if text else None
    try:
        return field.kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {'number' if field.kind is float else 'whole number'}") from None


def load(
    flags: Mapping[str, Any] | None = None, file: Path | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings in force. flags: by name, None for one that was not given. file: else $FLIDE_AGENT_CONFIG.

    Raises ValueError naming the source and the setting.
    """
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    if file is None and environment.get(FILE):
        file = Path(environment[FILE])
    if file is not None:
        given |= _values(_toml(file), str(file))
    variables = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name not in (FILE, ENVIRONMENT)
    }
    given |= _values(variables, "environment", PREFIX)
    given |= _values({name: value for name, value in (flags or {}).items() if value is not None}, "option")
    return Settings(**given)


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ValueError(f"settings file {file}: {e}") from e


def _values(given: Mapping[str, Any], source: str, prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in given.items():
        shown = prefix + (name.upper() if prefix else name)
        if name not in FIELDS:
            raise ValueError(f"{source}: {shown} is no setting; `flide-agent settings` lists them")
        try:
            out[name] = value_of(FIELDS[name], value)
        except ValueError as e:
            raise ValueError(f"{source}: {shown}: {e}") from e
    return out


def listing(settings: Settings) -> list[tuple[str, str, str]]:
    """(name, value in force, what it is) of every setting."""
    return [(f.name, _shown(f, getattr(settings, f.name)), f.about) for f in FIELDS.values()]


def _shown(field: Field, value: Any) -> str:
    if value is None:
        return "(unset)"
    if field.unit == "bytes":
        for unit in ("GiB", "MiB", "KiB"):
            if value % UNITS[unit.upper()] == 0:
                return f"{value // UNITS[unit.upper()]}{unit}"
    return str(value).lower() if field.kind is bool else str(value)

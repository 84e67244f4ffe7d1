"""
Job templates: fixed code and data with named parameters, so that a user gives only names and numbers.

`{lr}` in a string of a template's spec stands for the value of its parameter `lr`. Nothing is evaluated: values are put
in once, from left to right, and what a value says is never read again, by Kubernetes neither. Where a string is nothing
but the placeholder of an `int`, the number itself takes its place, so that `replicas: "{pods}"` works.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, ValidationError, model_validator

from tessera_schemas.base import INT_MAX, Digest, Name, Positive, Strict, Text
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.pod_template import literally

VALUE_CHARACTERS = 1024
ParameterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Number = Annotated[int, Field(ge=-INT_MAX, le=INT_MAX, strict=True)]
Words = Annotated[str, StringConstraints(max_length=VALUE_CHARACTERS)]
Value = Number | Words
Override = Literal["name", "queue", "priority_class", "project"]
At = tuple[str | int, ...]

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,62})\}")
TEXTS = frozenset({"template", "labels", "node_selector", "affinity", "tolerations"})
"""Below these everything is text: a number is written in digits there."""
_DIGITS = re.compile(r"-?[0-9]{1,16}")


class Parameter(Strict):
    """
    One thing that a user may say. Without a default it has to be said.

    Free text (`string`) goes into arguments and variables only. What must not be chosen freely, such as an image or a
    volume, is a `choice` among `values`.
    """

    name: Annotated[ParameterName, Field(description="Name of the parameter and its placeholder")]
    type: Annotated[Literal["string", "int", "choice"], Field(description="Type of the value")]
    description: Annotated[Text, Field(description="Help text for users")] = ""
    default: Annotated[Value | None, Field(description="Default value; null: users must set the parameter")] = None
    min: Annotated[Number | None, Field(description="Least value of an int")] = None
    max: Annotated[Number | None, Field(description="Greatest value of an int")] = None
    values: Annotated[tuple[Words, ...], Field(max_length=64, description="Allowed values of a choice")] = ()
    length_max: Annotated[Positive, Field(le=VALUE_CHARACTERS, description="Longest string, in characters")] = 256

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.type == "choice") != bool(self.values):
            raise ValueError(f"{self.name}: a choice has values, nothing else has any")
        if len(set(self.values)) != len(self.values) or not all(value.isprintable() for value in self.values):
            raise ValueError(f"{self.name}: values: each is there once, in printable characters")
        if self.type != "int" and (self.min is not None or self.max is not None):
            raise ValueError(f"{self.name}: min and max go with an int")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"{self.name}: min is above max")
        if self.default is not None and isinstance(read := self.read(self.default), Reason):
            raise ValueError(f"{self.name}: default: {read.sentence()}")
        return self

    def read(self, given: Value) -> Value | Reason:
        """The value that `given` stands for, which may be a number in digits; or why it is none."""
        if self.type == "int":
            return self._number(given)
        text = str(given)
        if self.type == "choice":
            return text if text in self.values else self._no(f"one of {', '.join(self.values)}")
        if len(text) > self.length_max:
            return self._no("too long", {"characters": len(text), "characters_max": self.length_max})
        return text if text.isprintable() else self._no("printable characters only, in one line")

    def samples(self) -> tuple[Value, ...]:
        """The default, or a stand-in for it, first; then the extremes of the allowed values."""
        if self.type == "choice":
            found: tuple[Value | None, ...] = (self.default, *self.values)
        elif self.type == "int":
            found = (self.default, self.min, self.max) if {self.default, self.min, self.max} != {None} else (1,)
        else:
            found = (self.default if self.default is not None else "x",)
        return tuple(dict.fromkeys(value for value in found if value is not None))

    def _number(self, given: Value) -> Value | Reason:
        if isinstance(given, str) and not _DIGITS.fullmatch(given):
            return self._no("a whole number")
        number = int(given)
        least, most = -INT_MAX if self.min is None else self.min, INT_MAX if self.max is None else self.max
        if least <= number <= most:
            return number
        numbers = {"min": least, "max": most} | ({"given": number} if abs(number) <= INT_MAX else {})
        return self._no("", numbers)

    def _no(self, detail: str, numbers: dict[str, int] | None = None) -> Reason:
        return refused(Code.INVALID_FIELD, self.name, detail, numbers)


class JobTemplate(Strict):
    """A job with placeholders; `overrides` are what a user may say beside the parameters."""

    name: Annotated[Name, Field(description="Name of the template")]
    description: Annotated[Text, Field(description="Help text for users")] = ""
    parameters: Annotated[tuple[Parameter, ...], Field(max_length=64, description="Parameters that users may set")] = ()
    overrides: Annotated[
        tuple[Override, ...], Field(max_length=4, description="Job fields that users may set besides")
    ] = ("name",)
    spec: Annotated[dict[str, JsonValue], Field(description="Spec of the job, with {placeholders}")]

    @model_validator(mode="after")
    def _placeholders(self) -> Self:
        declared = {parameter.name: parameter for parameter in self.parameters}
        used = {name for _, text in texts(self.spec) for name in PLACEHOLDER.findall(text)}
        wrong = [f"parameters.{name}: is there twice" for name in _twice([p.name for p in self.parameters])]
        wrong += [f"parameters.{name}: nothing uses it" for name in sorted(declared.keys() - used)]
        wrong += [f"spec: {{{name}}} is no parameter" for name in sorted(used - declared.keys())]
        wrong += _misplaced(self.spec, declared)
        if wrong:
            raise ValueError("; ".join(f"templates.{self.name}.{text}" for text in wrong))
        return self

    def read(self, given: Mapping[str, Value]) -> dict[str, Value] | tuple[Reason, ...]:
        """A value for each parameter, or everything against what was given."""
        known = {parameter.name for parameter in self.parameters}
        against = [refused(Code.UNKNOWN_FIELD, name) for name in sorted(given.keys() - known)]
        values: dict[str, Value] = {}
        for parameter in self.parameters:
            said = given.get(parameter.name, parameter.default)
            read = refused(Code.MISSING_FIELD, parameter.name) if said is None else parameter.read(said)
            if isinstance(read, Reason):
                against.append(read)
            else:
                values[parameter.name] = read
        return tuple(against) or values

    def expanded(self, values: Mapping[str, Value], overrides: Mapping[str, str]) -> JobSpec | tuple[Reason, ...]:
        """The job with these values; or why it is none, by parameter where one can be named."""
        filled: Any = _filled(self.spec, {**values, **self._free_texts(values)}, False)
        try:
            return JobSpec.model_validate_json(json.dumps({**filled, **overrides}), strict=True)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            # A list of which an item is wrong is said to be too short as well.
            wrong = [m for m in found if m["type"] != "too_short" or not self._at(m["loc"])]
            return tuple(self._mistake(mistake["loc"], mistake["msg"]) for mistake in wrong[:16])

    def _free_texts(self, values: Mapping[str, Value]) -> dict[str, Value]:
        free = [parameter.name for parameter in self.parameters if parameter.type == "string"]
        return {name: literally(str(values[name])) for name in free}

    def _at(self, at: At) -> Any:
        """The spec's value there, placeholders and all; None where it has none."""
        held: Any = self.spec
        for step in at:
            try:
                held = held[step]
            except (KeyError, IndexError, TypeError):
                return None
        return held

    def _mistake(self, at: At, text: str) -> Reason:
        held = self._at(at)
        named = PLACEHOLDER.search(held) if isinstance(held, str) else None
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).removeprefix(".")
        if named is not None:
            return refused(Code.INVALID_FIELD, named[1], f"{path}: {text}")
        return Reason(code=Code.INVALID_FIELD, field=f"template.{path}"[:300], detail=text[:1024])


class FromTemplate(Strict):
    """Template that a job was made from, the version of its configuration, and the hash of the sender's parameters."""

    name: Name
    config_version: Positive
    asked: Digest


def digest_of(asked: Mapping[str, Any]) -> str:
    """Hash of what a user asked of a template; numbers and the same in digits are the same."""
    parameters = {name: str(value) for name, value in asked["parameters"].items()}
    canonical = json.dumps({**asked, "parameters": parameters}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def refused(code: Code, parameter: str, detail: str = "", numbers: dict[str, int] | None = None) -> Reason:
    """A reason about one parameter."""
    return Reason(code=code, field=f"parameters.{parameter}", detail=detail[:1024], numbers=numbers or {})


def texts(node: Any, at: At = ()) -> Iterator[tuple[At, str]]:
    """Every string of a spec, the keys of its maps included, and where it is."""
    if isinstance(node, str):
        yield at, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield (*at, "[key]"), key
            yield from texts(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from texts(value, (*at, index))


def _misplaced(spec: Mapping[str, Any], declared: Mapping[str, Parameter]) -> list[str]:
    """Placeholders where a user must have no say, or not a free one."""
    wrong = []
    for at, text in texts(spec):
        kinds = {declared[name].type for name in PLACEHOLDER.findall(text) if name in declared}
        path = ".".join(str(step) for step in at)
        if kinds and at[-1] == "[key]":
            wrong.append(f"spec.{path}: a key holds no parameter")
        elif at[-1] == "image" and kinds - {"choice"}:
            wrong.append(f"spec.{path}: only a choice may name an image")
        elif "string" in kinds and at[2:4] not in (("template", "args"), ("template", "env")):
            wrong.append(f"spec.{path}: a string goes into args and env; here it is to be a choice")
    return wrong


def _filled(node: Any, values: Mapping[str, Value], is_text: bool) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, values, is_text or key in TEXTS) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, values, is_text) for value in node]
    if not isinstance(node, str):
        return node
    whole = PLACEHOLDER.fullmatch(node)
    if whole is not None and not is_text:
        return values[whole[1]]
    return PLACEHOLDER.sub(lambda found: str(values[found[1]]), node)


def _twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})

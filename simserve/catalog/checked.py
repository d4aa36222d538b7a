"""Values of a foreign JSON file in the types of a schema, or a CatalogError that names the key."""

from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError

from simserve.errors import CatalogError
from simserve.plugins.validation import Path, as_json, problems_of

UNEVEN = "layers that differ in shape are not supported yet"


class Strict(BaseModel):
    """Keys with their types, beside others that are not read."""

    model_config = ConfigDict(strict=True, protected_namespaces=())


class StopAtFirst(FailFast):
    """Stop at the first wrong item of a list: an error for each of a million would take gigabytes."""

    __hash__ = object.__hash__  # unions compare their members by it


Schema = TypeVar("Schema", bound=Strict)


def checked(schema: type[Schema], data: object, path: Path = ()) -> Schema:
    """Return data in the types of a schema. Raises CatalogError for a value of another type or out of range, by the
    keys that lead to it from the top of the file."""
    try:
        return schema.model_validate_json(as_json(data))
    except ValidationError as error:
        problem = problems_of(error, data)[0].below(path)
        is_uneven = problem.rule == "must be a whole number" and str(problem.value).startswith("[")
        remedy = problem.remedy or (UNEVEN if is_uneven else "compare it with the published file")
        raise CatalogError(str(replace(problem, remedy=remedy))) from None

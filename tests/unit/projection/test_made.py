"""Views made quickly are the models that pydantic would make."""

from typing import Any

import pytest
from pydantic import BaseModel

from tessera.projection.array_views import view
from tessera_schemas.views import JobView, NodeView, QueueView


@pytest.mark.parametrize("kind", [JobView, NodeView, QueueView])
def test_a_view_made_of_values_from_the_state_is_the_model_of_these_values(kind: type[BaseModel]) -> None:
    values: dict[str, Any] = {name: f"its {name}" for name, field in kind.model_fields.items() if field.is_required()}
    values[list(kind.model_fields)[-1]] = "the last"
    made, plain = view(kind, **values), kind.model_construct(**values)
    assert (made, made.model_fields_set, list(dict(made))) == (plain, plain.model_fields_set, list(dict(plain)))
    with pytest.raises(TypeError, match="no_such_field"):
        view(kind, **values, no_such_field=1)

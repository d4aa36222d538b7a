"""`simserve schema`: what an editor checks a scenario with."""

import json

from tests.cli.invoke import invoke


def test_the_schema_is_json_schema_of_the_contracts_keys() -> None:
    outcome = invoke("schema")
    assert outcome.exit_code == 0
    schema = json.loads(outcome.out)
    contract = {"schema", "name", "seed", "model", "gpu", "engine", "cluster", "workload", "measure", "slo"}
    assert contract <= set(schema["properties"])
    assert schema["additionalProperties"] is False

"""`simserve schema`: the JSON Schema of a scenario, for editors."""


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    from simserve.cli import terminal
    from simserve.scenario import scenario_schema

    terminal.result_json(scenario_schema())

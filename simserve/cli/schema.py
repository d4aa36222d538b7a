"""`simserve schema`: the JSON Schema of a scenario, for editors."""


def schema() -> None:
    """Print the JSON Schema of a scenario, for editors."""
    from simserve import Scenario
    from simserve.cli import terminal

    terminal.result_json(Scenario.model_json_schema())

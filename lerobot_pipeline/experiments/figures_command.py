"""`lerobot-pipeline figures`: learning curves, scores or filmed episodes of one experiment."""

from __future__ import annotations

from lerobot_pipeline.config.figures import FiguresConfig
from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.errors import EXIT_DONE, UsageError
from lerobot_pipeline.experiments.html import film_page
from lerobot_pipeline.experiments.methods import load_methods
from lerobot_pipeline.experiments.reading import read_experiment_file
from lerobot_pipeline.experiments.runs import expand
from lerobot_pipeline.files import write_text


def run(arguments: list[str]) -> int:
    """Write `figures/<figure>` in the experiment's directory: SVG, PDF and PNG, or one HTML page of films."""
    config = read_config(FiguresConfig, arguments)
    runs = expand(read_experiment_file(config.config_files, config.results))
    members = [each for each in runs if each.experiment_slug == config.experiment]
    if not members:
        known = ", ".join(dict.fromkeys(each.experiment_slug for each in runs))
        raise UsageError("experiment", f"no experiment is named {config.experiment!r}; known: {known}")
    output_dir = members[0].directory.parent / "figures"
    if config.figure == "rollouts":
        films = [film for method in load_methods(members) for film in method.films()]
        write_text(output_dir / "rollouts.html", film_page(f"{members[0].experiment}: evaluation episodes", films))
        return EXIT_DONE
    # matplotlib takes a second to import, which a wrong flag should not pay.
    from lerobot_pipeline.experiments import figures

    is_curves = config.figure == "learning_curves"
    figure = figures.learning_curves(members) if is_curves else figures.scores(load_methods(members))
    figures.save(figure, output_dir, config.figure)
    return EXIT_DONE

"""`lerobot-pipeline convert-dcp`: shards of weights into one file, or back."""

from __future__ import annotations

from lerobot_pipeline.checkpoint.reader import weights_digest
from lerobot_pipeline.config.convert import ConvertConfig
from lerobot_pipeline.config.publish import PublishConfig, PublishedPolicyConfig
from lerobot_pipeline.config.reader import read_config
from lerobot_pipeline.conversion.convert import Outcome, make_shards, merge_shards
from lerobot_pipeline.conversion.places import Source, find_source
from lerobot_pipeline.errors import EXIT_DONE
from lerobot_pipeline.files import write_json


def run(arguments: list[str]) -> int:
    """Convert as the flags say. Joins no other process, whatever a launcher has left in the environment."""
    config = read_config(ConvertConfig, arguments)
    source = find_source(config.checkpoint_dir)
    publication = _publication(config, source)
    if publication is not None:
        # Publishing takes half a second to import. A missing token is found before the work.
        from lerobot_pipeline.publishing.publish import check_target, publish_checkpoint

        check_target(publication)
    outcomes = make_shards(source) if config.to_dcp else merge_shards(source, config.delete_dcp)
    for outcome in outcomes:
        print(f"{'already converted' if outcome.was_there else 'converted'}: {outcome.path}", flush=True)
    if config.summary is not None:
        write_json(config.summary, {"weights": [_describe(outcome) for outcome in outcomes]})
    if publication is not None:
        print(f"published to {publish_checkpoint(publication)['url']}")
    return EXIT_DONE


def _publication(config: ConvertConfig, source: Source) -> PublishConfig | None:
    if config.push_to_hub is None:
        return None
    policy = PublishedPolicyConfig(path=source.models[0].directory)
    return PublishConfig(policy=policy, target="hub", repo_id=config.push_to_hub)


def _describe(outcome: Outcome) -> dict[str, str | None]:
    directory = outcome.path.parent
    return {"path": f"{directory.name}/{outcome.path.name}", "sha256": weights_digest(directory)}

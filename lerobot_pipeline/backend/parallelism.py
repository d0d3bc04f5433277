"""How the processes of a run share its work: degrees of replication and sharding, resolved against the world size."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_pipeline.errors import ConfigError, UsageError

FILL = -1
"""A degree of -1 takes whatever the launcher started."""


@dataclass(kw_only=True)
class ParallelismConfig:
    """Degrees of data parallelism. Nothing given and several processes: plain DDP over all of them."""

    dp_replicate: int | None = None
    """Copies of the model; unset, it fills the world size."""

    dp_shard: int = 1
    """Ranks that share one copy of the model; 1 keeps it whole on every rank, -1 takes all that is left."""

    def __post_init__(self) -> None:
        if self.dp_replicate is not None and self.dp_replicate < 1:
            raise ConfigError("parallelism.dp_replicate", f"must be >= 1, got {self.dp_replicate}")
        if self.dp_shard < 1 and self.dp_shard != FILL:
            raise ConfigError("parallelism.dp_shard", f"must be >= 1, or {FILL} to fill the world, got {self.dp_shard}")

    def resolve(self, world_size: int) -> Topology:
        """Return the topology for `world_size` processes.

        Raises:
            UsageError: the degrees do not multiply to the world size.
        """
        shard, replicate = self.dp_shard, self.dp_replicate
        if shard == FILL:
            shard = max(1, world_size // (replicate or 1))
        if replicate is None:
            replicate = max(1, world_size // shard)
        if replicate * shard != world_size:
            started = "1 process was started" if world_size == 1 else f"{world_size} processes were started"
            raise UsageError(
                "parallelism.dp_shard",
                f"dp_replicate {replicate} x dp_shard {shard} = {replicate * shard}, but {started}; use "
                f"--parallelism.dp_shard={FILL} to fill them, or start as many as the degrees ask for",
            )
        return Topology(world_size=world_size, dp_replicate=replicate, dp_shard=shard)


@dataclass(frozen=True)
class Topology:
    """A resolved layout. `dp_replicate * dp_shard == world_size`, checked where it is made."""

    world_size: int
    dp_replicate: int
    dp_shard: int

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are split over ranks."""
        return self.dp_shard > 1

    @property
    def name(self) -> str:
        """`single`, `DDP 2`, `FSDP2 4`, `HSDP 2x2`."""
        if self.world_size == 1:
            return "single"
        if not self.is_sharded:
            return f"DDP {self.world_size}"
        if self.dp_replicate == 1:
            return f"FSDP2 {self.dp_shard}"
        return f"HSDP {self.dp_replicate}x{self.dp_shard}"

    def as_dict(self) -> dict[str, int]:
        """Return the degrees, as checkpoints and manifests hold them."""
        return {"world_size": self.world_size, "dp_replicate": self.dp_replicate, "dp_shard": self.dp_shard}

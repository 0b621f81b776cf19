"""Offshoot on a Ray cluster, through Ray Data; Ray schedules, moves the rows and starts again what died.

``build_processor`` has the call shape of ``ray.data.llm``; ``by_prefix`` cuts a job such that prompts which begin alike
reach the same actor together; ``judge`` maps verdicts over the cluster's CPUs. Needs ``ray[data]``.
"""

try:
    import ray.data as _needed  # noqa: F401
except ImportError as error:
    raise ImportError(f"offshoot.ray needs Ray Data: pip install 'ray[data]' ({error})") from error

from offshoot.ray.blocks import ROW
from offshoot.ray.config import OffshootConfig
from offshoot.ray.prefix import PartOfJob, PrefixCut, by_prefix
from offshoot.ray.processor import Processor, build_processor
from offshoot.ray.verdicts import judge

__all__ = ["OffshootConfig", "Processor", "build_processor", "by_prefix", "PrefixCut", "PartOfJob", "judge", "ROW"]

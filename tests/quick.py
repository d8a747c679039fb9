"""How tests compile: quickly, and once for all processes. Imports nothing of JAX, which reads this when it starts."""

import os
from importlib.metadata import version
from pathlib import Path

# Unoptimised and unfused programs compile three times as fast.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and end the process that has it
    FLAGS += " --xla_cpu_use_fusion_emitters=false"


def compiling(cache: Path | None) -> dict[str, str]:
    """Environment variables for a process that compiles, with a folder for what commands keep."""
    found = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '').replace(FLAGS, '')} {FLAGS}".strip()}
    return found | ({} if cache is None else {"DEMOSIFT_CACHE": str(cache)})

"""How tests compile: quickly, and once for all processes. Imports nothing of JAX, which reads this when it starts."""

import os
from importlib.metadata import version
from pathlib import Path

# Unoptimised and unfused programs compile three times as fast.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and end the process that has it
    FLAGS += " --xla_cpu_use_fusion_emitters=false"


def compiling(cache: Path | None, keep: bool = False) -> dict[str, str]:
    """Environment variables for a process that runs JAX, with a folder for compiled programs.

    JAX finds a program by its text, the flags and its own version. It does not write a file whole or not at all: a file
    cut short is compiled anew, and a process that may be killed only reads. `keep` is for one that is not.
    """
    found = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '').replace(FLAGS, '')} {FLAGS}".strip()}
    if cache is not None:
        found |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if keep else "1e9",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    return found

"""How many pictures per second the default encoder embeds on two cores: writes embed.md here.

taskset -c 0,1 .venv/bin/python benchmarks/embed.py
"""

import time
from pathlib import Path

import numpy as np

from demosift.simulation.cores import available_cores
from demosift.vision.embedding import cache_folder
from demosift.vision.encoder import load_encoder

SIZES, HEIGHT, WIDTH, PICTURES = (224, 128), 480, 640, 256


def main() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (32, HEIGHT, WIDTH, 3), np.uint8)
    rows = []
    for size in SIZES:
        encoder = load_encoder("default", cache_folder(), size)
        list(encoder.embed(pictures))
        began, used = time.perf_counter(), time.process_time()
        for _ in range(PICTURES // len(pictures)):
            list(encoder.embed(pictures))
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        rows.append(f"| {size} | {PICTURES / wall:.0f} | {available_cores() * PICTURES / cpu:.0f} |")
    text = f"""# Embedding pictures

Pictures of {WIDTH} x {HEIGHT} pixels that the default encoder embeds in a second on {available_cores()} cores, the
reduction to its own size included, decoding left out; made by `benchmarks/embed.py`. By the clock, and by the time of
the processor, which is what free cores would do: the machine was busy with other work.

| size | per second | per second of free cores |
| --- | --- | --- |
{chr(10).join(rows)}
"""
    Path(__file__).with_name("embed.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

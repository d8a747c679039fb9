"""Film strips for the page: what a dataset's cameras saw in the episodes that the page shows first.

A strip is one JPEG of a few pictures, evenly spaced from an episode's first step to its last, so that it lies above the
episode's strip of weights and tells the same times. The pictures go into `page.json`, and with it into the page.
"""

import base64
import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from demosift.data import open_rows, without_episodes
from demosift.data.formats import Source
from demosift.report.sift_episodes import highlighted
from demosift.types import InputError
from demosift.vision.embedding import check_clips
from demosift.vision.frames import Camera, Clip, open_cameras

PICTURES = 8
MOST_CAMERAS = 3
WIDTH, LEAST_HEIGHT, MOST_HEIGHT = 112, 48, 140  # of a picture, in pixels: all strips together stay below 5 MB
QUALITY = 72

Films = dict[str, dict[str, list[str]]]  # of each set, by the episode's number: a strip of each camera


def make_films(
    page: Mapping[str, Any], expert: Source, supplementary: Source, names: Sequence[str] = ()
) -> tuple[dict[str, Any] | None, str | None]:
    """The strips of the episodes that are shown first, and why there are none where there should be.

    Nothing is said where the data hold no pictures, or what decodes them is not installed: then nobody expects any.
    """
    if any(importlib.util.find_spec(needed) is None for needed in ("av", "PIL")):
        return None, None
    try:
        cameras = [open_cameras(without_episodes(source), names) for source in (expert, supplementary)]
    except InputError:
        return None, None
    shared = [name for name in cameras[1] if name in cameras[0]][:MOST_CAMERAS]
    chosen = highlighted(page)
    wanted = {
        "expert": chosen["reference"],
        "supplementary": [one for kind in ("good", "bad", "unsure") for one in chosen[kind]],
    }
    films: Films = {}
    try:
        for role, source, own in zip(wanted, (expert, supplementary), cameras, strict=True):
            numbers = sorted({int(one["episode"]) for one in wanted[role]})
            films[role] = film_episodes(source, [own[name] for name in shared], numbers)
    except InputError as error:
        return None, f"no film strips: {error}"
    return {"cameras": shared, "pictures": PICTURES, **films}, None


def film_episodes(source: Source, cameras: Sequence[Camera], numbers: Iterable[int]) -> dict[str, list[str]]:
    rows = open_rows(without_episodes(source), "clip")  # actions are not looked at
    for camera in cameras:
        check_clips(rows, camera)
    place = {number: at for at, number in enumerate(rows.numbers.tolist())}
    lengths = np.diff(rows.episode_ends, prepend=0)
    return {
        str(number): [film(camera.clips[place[number]], int(lengths[place[number]])) for camera in cameras]
        for number in numbers
    }


def film(clip: Clip, length: int) -> str:
    """The pictures at the middles of equal parts of the episode, side by side, as a JPEG in base64."""
    from PIL import Image

    steps = ((np.arange(PICTURES) + 0.5) * length / PICTURES).astype(np.int64)
    wanted = np.unique(steps)
    found = dict(zip(wanted.tolist(), clip.read(wanted), strict=True))
    first = found[int(wanted[0])]
    height = int(np.clip(round(WIDTH * first.shape[0] / first.shape[1]), LEAST_HEIGHT, MOST_HEIGHT))
    strip = Image.new("RGB", (WIDTH * PICTURES, height))
    for place, step in enumerate(steps.tolist()):
        small = Image.fromarray(found[step]).resize((WIDTH, height), Image.Resampling.BOX)
        strip.paste(small, (WIDTH * place, 0))
    out = io.BytesIO()
    strip.save(out, "JPEG", quality=QUALITY)
    return base64.b64encode(out.getvalue()).decode("ascii")

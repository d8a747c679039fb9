"""Runs where robomimic is installed, and demosift is not: opens what demosift wrote, and trains one step of its BC.

python with_robomimic.py FILE DEMONSTRATIONS [FILTER_KEY]
"""

# What is imported here is not installed where the types are checked.
# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportOptionalMemberAccess=false

import sys
from importlib.metadata import version

import numpy as np
import robomimic.utils.file_utils as file_utils
import robomimic.utils.obs_utils as obs_utils
import robomimic.utils.torch_utils as torch_utils
import torch
from robomimic.algo import algo_factory
from robomimic.config import config_factory
from robomimic.utils.dataset import SequenceDataset


def main(path: str, demonstrations: str, filter_key: str | None = None) -> None:
    config = config_factory("bc")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = ["object", "robot0_eef_pos"]
        config.observation.modalities.obs.rgb = []
        config.train.data, config.train.hdf5_filter_key = path, filter_key
        config.train.cuda = False
    obs_utils.initialize_obs_utils_with_config(config)
    assert file_utils.get_env_metadata_from_dataset(path)["env_name"] == "Lift"
    shapes = file_utils.get_shape_metadata_from_dataset(path, all_obs_keys=["object", "robot0_eef_pos"])
    dataset = SequenceDataset(
        hdf5_path=path,
        obs_keys=("object", "robot0_eef_pos"),
        dataset_keys=("actions", "rewards", "dones"),
        load_next_obs=True,
        hdf5_cache_mode=None,
        filter_by_attribute=filter_key,
    )
    assert dataset.n_demos == int(demonstrations), dataset.n_demos
    model = algo_factory(
        algo_name="bc",
        config=config,
        obs_key_shapes=shapes["all_shapes"],
        ac_dim=shapes["ac_dim"],
        device=torch_utils.get_torch_device(try_to_use_cuda=False),
    )
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)))
    model.set_train()
    own = model.process_batch_for_training(batch)
    info = model.train_on_batch(model.postprocess_batch_for_training(own, None), epoch=0)
    loss = float(model.log_info(info)["Loss"])
    assert np.isfinite(loss)
    print(f"robomimic {version('robomimic')}: {path}: {len(dataset)} samples of {dataset.n_demos}, loss {loss:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

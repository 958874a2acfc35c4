"""docs/torchrl.md: every row that says "same" names a feature that a test compares with TorchRL itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torchrl.data
import torchrl.data.datasets
import torchrl.data.replay_buffers

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "torchrl.md"

SPECS = ["test_values_of_each_are_in_the_other", "test_encode", "test_index", "test_changes", "test_composites"]
#: By how a row begins, the functions of tests/storage/replay that stand for it; others by "file:function".
COMPARED = {
    "`ReplayBuffer(storage, sampler": "parts_as_factories defaults",
    "`batch_size` at construction": "batch_size_of_the_call_wins",
    "`add`, `extend`": "lists_and_trees more_than_fits test_rings_hold_the_same test_rings_of_two_dimensions_hold_the_same",
    "`sample(batch_size, return_info)`": "info test_plain_buffers_give_flags_in_the_info_only",
    "`TensorDictReplayBuffer`: info": "index_of_the_writer test_the_same_priorities_and_weights",
    "`PrioritizedReplayBuffer`": "priorities_of_a_list priorities_in_tensordicts",
    "`rb[i]`": "indexing rewritten_in_order columns_of_two_dimensions",
    "iteration": "iteration dropped_last",
    "`transform`": "through_transforms inverse_transform test_parts_are_made_late",
    "`pin_memory`": "pinned_without_a_gpu",
    "`set_rng(generator)`": "test_one_generator_for_all",
    "`state_dict`, `load": "states test_states_of_theirs_are_loaded",
    "`register_save_hook`": "test_flattened_files_are_the_same ted_hooks_over_a_rollout",
    "`empty(empty": "emptied exchanged test_stats",
    "read-only datasets": "read_only",
    "`consume_after": "online/test_consuming.py:test_rows_lengths_and_states_are_those_of_torchrl",
    "`update_if_present`": "updated_if_present updated_if_newer test_like_torchrl",
    "`stats()`": "test_stats test_can_sample in_order",
    "`delayed_init`": "test_parts_are_made_late",
    "`checkpointer`": "checkpoint_around_its_files",
    "`compilable`": "test_every_argument_of_torchrl_is_taken",
    "`update_`": "test_leaves_are_changed_in_place",
    "`OfflineToOnline": "from_offline_to_online",
    "`RandomSampler`": "samplers/test_uniform.py:test_without_replacement_by_argument",
    "`SamplerWithoutReplacement": "dropped_last samplers/test_uniform.py:test_ten_in_fours",
    "`SliceSampler` |": "test_the_same_slices_are_possible test_the_same_slices_of_several_environments",
    "`SliceSamplerWithoutReplacement`": "slices_without_replacement every_episode_once",
    "`PrioritizedSliceSampler`": "prioritized_slices",
    "`StalenessAwareSampler": "staleness",
    "`LinearScheduler`": "test_values_are_those_of_torchrl schedules",
    "`SamplerEnsemble`": "test_an_ensemble_of_parts",
    "your own subclasses": "test_sample_of_a_subclass test_get_of_a_storage test_methods_of_a_buffer test_empty_of_parts",
    "`rb._storage = X`": "test_parts_are_assigned",
    "`num_slices`, `slice_len` |": "slices_in_the_batch slices_by_number slices_that_do_not_fit",
    "`end_key`": "test_the_same_slices_are_possible key_of_trajectories",
    "`ends`": "given_ends given_trajectories",
    "`strict_length`": "padded test_short_slices short_slices_are_split",
    "`truncated_key`": "no_truncated_key slices_in_the_batch",
    "`fragmented`": "fragments",
    "`use_gpu`": "key_of_trajectories",
    "`LazyStackStorage": "texts_of_any_length",
    "`TensorStorage`": "existing_batch two_dimensions test_batches_have_the_device_of_their_storage",
    "`contains`": "storages/test_part_files.py:test_contains_and_flatten",
    "`RoundRobinWriter`": "default_writer index_of_the_writer",
    "`track_generations`": "generations test_like_torchrl",
    "`TensorDictMaxValueWriter`": "test_the_best_are_kept best_kept best_trajectories",
    "`ReplayBufferEnsemble": "test_ensembles_have_one_shape ensembles test_records_are_shared_out",
    "`split_trajectories`": "test_split_trajectories",
    "`MultiStep(": "test_multi_step test_multi_step_of_groups",
    "collectors' batches": "one_environment several_environments",
    "collectors that write": "the_collector_writes whole_trajectories in_the_background",
    "collectors' compact": "compact_observations differences_of_observations",
    "`available_datasets`": "tests/datasets/torchrl_classes/test_dataset_classes.py:test_minari_against_torchrl",
    "slices by `num_slices`": "tests/datasets/torchrl_classes/test_dataset_classes.py:test_d4rl_against_torchrl",
    "`load_dataset`": "registered_datasets",
    "`TED2Flat`": "test_flattened_files_are_the_same",
    "`TensorSpec`": " ".join(f"tests/storage/test_tensor_specs_of_torchrl.py:{one}" for one in SPECS),
}
#: TorchRL's side of these downloads or writes to its own cache: they are compared with the files instead.
NOT_COMPARED = {
    "`OpenMLExperienceReplay`": "TorchRL's asks openml.org through scikit-learn",
    "`root`": "TorchRL's classes take it with a download",
    "`download=True`": "TorchRL's classes download from the provider",
    "`preprocess(fn": "TorchRL's Minari class, the one that could run here, holds zeros",
}


def test_every_public_name_of_torchrl_is_on_the_page():
    modules = (torchrl.data, torchrl.data.replay_buffers, torchrl.data.datasets)
    names = {name for module in modules for name in module.__all__}
    text = re.sub("```.*?```", "", PAGE.read_text(), flags=re.S)
    code = " ".join(re.findall("`([^`]+)`", text))
    assert len(names) > 120
    assert sorted(names - set(re.findall(r"\w+", code))) == []


def test_every_same_row_has_a_test_beside_torchrl():
    rows = [line.strip("| ") for line in PAGE.read_text().splitlines() if re.match(r"\|.*\| same \|", line)]
    assert len(rows) > 50
    for row in rows:
        known = [start for start in (*COMPARED, *NOT_COMPARED) if row.startswith(start)]
        assert len(known) == 1, (row, known)
    for start in (*COMPARED, *NOT_COMPARED):
        assert any(row.startswith(start) for row in rows), start


@pytest.mark.parametrize("start", COMPARED)
def test_the_tests_are_there(start):
    here = Path(__file__).parent
    for name in COMPARED[start].split():
        *place, function = name.rsplit(":", 1)
        if place:
            files = [TESTS.parent / place[0] if place[0].startswith("tests/") else here / place[0]]
        else:
            files = sorted((*here.glob("*.py"), *here.glob("online/*.py")))
        holders = [text for file in files if f"\ndef {function}(" in (text := file.read_text())]
        assert holders and any("torchrl" in text for text in holders), name

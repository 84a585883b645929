"""Names that users of other libraries write first, and relive's names for them: one table, read for each refused name.

A row has a place, the names that are tried there, the code to write instead, and the reason if it is not plain. A name
without a row is answered with the nearest existing name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

__all__ = [
    "COLUMN_NAMES",
    "Slip",
    "attribute_of",
    "attributes",
    "for_argument",
    "for_attribute",
    "for_column",
    "for_missing",
    "hint",
    "said",
]


class Slip(NamedTuple):
    """A way out of a wrong name."""

    instead: str  # a name, or a line of code
    why: str = ""


_SHARED = "Table(..., storage=SharedMemory('name'))"
_N_STEP = "Index(Transitions(n_step=..., gamma=...))"
_STACK = "Index(Transitions(stack={'observation': 4}))"
_PRIORITIZED = "Index(sampler=Prioritized(priority_exponent=...))"
_WEIGHTS = "batch.weights(beta=...)"
_RANDOM = "Table(..., seed=...)"

# ---- arguments: of which class or call, the names that are tried, the code to write, the reason --------------------

_CAPACITY = "buffer_size max_size size maxlen max_capacity total_size max_length replay_buffer_size num_steps"
_ALPHA = "alpha exponent power per_alpha prioritized_replay_alpha"
_BETA = "beta per_beta prioritized_replay_beta beta0"
_SAMPLE = "batch_size num_samples sample_size n"
_DTYPES = "type data_type d_type"

_ARGUMENTS: tuple[tuple[str, str, str, str], ...] = (
    ("Table TableConfig", _CAPACITY, "capacity=", ""),
    ("Table TableConfig", "sampler", "Index(sampler=...)", "an index says how its items are drawn"),
    ("Table TableConfig", "limiter rate_limiter", "Index(limiter=...)", "an index says when its items may be drawn"),
    ("Table TableConfig", "remover", "Index(remover=...)", ""),
    ("Table TableConfig", "max_times_sampled", "Index(max_times_sampled=...)", ""),
    ("Table TableConfig", "max_items", "Index(max_items=...)", "capacity= counts steps"),
    ("Table TableConfig", "items", "Index(items=...)", "an index says what its items are"),
    ("Table TableConfig", "indexes indices", "index=", "one Index, or a dict of them by name"),
    ("Table TableConfig", "n_step nstep num_steps_return n_steps Nstep", _N_STEP, ""),
    ("Table TableConfig", "gamma discount", _N_STEP, "a batch's discount then holds all gammas of its n steps"),
    ("Table TableConfig", "stack stack_num frame_stack num_stack stack_frames", _STACK, ""),
    ("Table TableConfig", _ALPHA + " priority_exponent prioritized", _PRIORITIZED, ""),
    ("Table TableConfig", _BETA, _WEIGHTS, "the exponent of the weights belongs to each batch"),
    ("Table TableConfig", "batch_size", "table.sample(num_items)", "each call says how many"),
    ("Table TableConfig", "name", _SHARED, "only a table that processes share has a name"),
    ("Table TableConfig", "shared", _SHARED, ""),
    ("Table TableConfig", "overwrite", "SharedMemory(name, overwrite=True)", ""),
    ("Table TableConfig", "signature step_spec specs env_dict", "spec=", "a StepSpec"),
    (
        "Table TableConfig",
        "observation_space action_space obs_space act_space",
        "StepSpec.from_spaces(observation_space, action_space)",
        "",
    ),
    ("Table TableConfig", "n_envs num_envs buffer_num num_lanes", "table.writer(num_lanes=...)", "a lane each"),
    ("Table TableConfig", "device", "table.batches(..., device=...)", "or batch.to_torch(device)"),
    ("Table TableConfig", "timeout", "timeout_s=", ""),
    ("Table TableConfig", "rng random_state generator", "seed=", ""),
    ("Prioritized RankBased", _ALPHA, "priority_exponent=", ""),
    ("Prioritized RankBased TopK", _BETA, _WEIGHTS, "the exponent of the weights belongs to each batch"),
    (
        "Prioritized",
        "eps epsilon",
        "update_priorities(keys, abs(error) + eps)",
        "priorities are taken as they are given",
    ),
    ("Prioritized RankBased TopK", "initial_priority default_priority max_priority", "initial=", ""),
    ("TopK", "n num num_items top count share fraction", "k=", "an int, or a share as a float in (0, 1]"),
    ("Prioritized Uniform", "seed rng", _RANDOM, ""),
    ("Index", "rate_limiter", "limiter=", ""),
    ("Index", _ALPHA + " priority_exponent", "sampler=Prioritized(priority_exponent=...)", ""),
    ("Index", "n_step nstep gamma stack", "Transitions(n_step=..., gamma=..., stack=...)", "as the first argument"),
    ("Index", "min_size min_size_to_sample learning_starts", "limiter=MinSize(...)", ""),
    ("Index", "samples_per_insert", "limiter=SamplesPerInsert(samples_per_insert, min_size)", ""),
    ("Index", "transitions", "items=", ""),
    ("Index", "name", "Table(spec, capacity, {'name': Index(...)})", ""),
    ("Transitions", "nstep n n_steps num_steps steps", "n_step=", ""),
    ("Transitions", "discount discount_factor", "gamma=", ""),
    ("Transitions", "frame_stack stack_num num_stack stack_size frames", "stack={'observation': ...}", ""),
    ("Transitions", "pad padding", "stack_pad=", "'repeat' or 'zeros'"),
    ("MinSize SamplesPerInsert", "min_size_to_sample learning_starts warmup", "min_size=", ""),
    ("SamplesPerInsert", "error_buffer", "tolerance=", "half of the window, in samples"),
    ("SamplesPerInsert", "ratio spi replay_ratio", "samples_per_insert=", "replay ratio x batch size"),
    ("Queue", "size maxsize capacity", "max_size=", ""),
    ("StalenessBudget", "max_staleness max_head_offpolicyness", "eta=", "versions ahead of the learner"),
    ("SharedMemory", "replace exist_ok force", "overwrite=", ""),
    ("SharedMemory LocalMemory Tiered", _CAPACITY + " capacity", "Table(spec, capacity, ...)", ""),
    ("Tiered", "path folder dir scratch_dir", "directory=", ""),
    ("Tiered", "ram memory memory_bytes", "ram_bytes=", ""),
    ("ArraySpec", _DTYPES, "dtype=", ""),
    ("ArraySpec", "dims size", "shape=", ""),
    ("ArraySpec", "role", "kind=", "'step', 'state', 'start' or 'episode'"),
    ("ArraySpec", "low high minimum maximum name", "ArraySpec(shape, dtype, kind)", "bounds and names are not its own"),
    (
        "StepSpec",
        "observation obs state action reward next_observation",
        "StepSpec({'observation': ArraySpec(shape, dtype, kind='state'), ...})",
        "one dict",
    ),
    ("from_spaces", "obs_space observation", "observation_space=", ""),
    ("from_spaces", "act_space action", "action_space=", ""),
    ("from_spaces", "dtype obs_dtype", "float64_as=", "the dtype in which float64 spaces are stored"),
    ("from_spaces", "stack frame_stack", "unstack=", "where the environment makes stacks; else Transitions(stack=...)"),
    ("sample draw batches", _SAMPLE, "num_items=", "or just the first argument"),
    ("sample draw batches gather", _BETA, _WEIGHTS, "weights are made from a drawn batch"),
    ("sample draw batches gather", _ALPHA, "Prioritized(priority_exponent=...)", "of the table's Index"),
    ("sample batches", "keys names fields", "columns=", ""),
    ("sample draw batches gather", "table", "index=", ""),
    ("sample", "device", "sample(...).to_torch(device)", "or table.batches(..., device=...)"),
    ("sample draw batches", "timeout", "timeout_s=", ""),
    ("sample draw", "replace replacement", "Index(replacement=False)", "an index draws with replacement, or without"),
    ("sample", "env", "sample(num_items)", "what is stored is what the environment gave: nothing is normalised"),
    ("sample draw", "seed rng", _RANDOM, "the random numbers are the table's"),
    ("batches", "num_workers workers", "prefetch=", ""),
    ("batches", "num_batches", "table.batches(num_items, prefetch=...)", "it goes on until its `with` block ends"),
    ("update_priorities", "indices indexes index_array idx idxs keys indeces tree_idxs", "item_keys=", ""),
    ("update_priorities", "priority td_error td_errors weights new_weight new_priorities", "priorities=", ""),
    ("gather", "indices indexes idx keys item_keys draw", "items=", "a Draw, or keys"),
    ("delete", "keys indices indexes idx", "item_keys=", ""),
    ("weights", "alpha", "Prioritized(priority_exponent=...)", "of the table's Index"),
    ("writer", "num_envs n_envs n lanes", "num_lanes=", "a lane for each environment"),
    ("attach connect", "timeout", "timeout_s=", ""),
    ("attach", "readonly", "read_only=", ""),
    ("attach", "rank seed", "stream=", "which random numbers this handle draws with"),
    ("connect", "url host uri", "connect('grpc://host:7070/name')", ""),
)

# ---- attributes: of which class, the names that are tried, the code to write, the reason ----------------------------

_ADD = "add insert append extend push put store record add_batch add_transition insert_batch"

_ATTRIBUTES: tuple[tuple[str, str, str, str], ...] = (
    ("Table", _ADD, "table.writer().append(...)", "one writer for each process or thread, opened once"),
    ("Table", "write create_writer get_writer trajectory_writer", "table.writer()", ""),
    ("Table", "sample_batch sample_transitions get_batch random_batch sample_all", "table.sample(num_items)", ""),
    ("Table", "sample_indices sample_keys", "table.draw(num_items)", ""),
    ("Table", "get get_batch_by_keys", "table.gather(keys)", ""),
    (
        "Table",
        "update_priority update_weight update_weights set_priorities mutate_priorities",
        "table.update_priorities(batch.item_keys, priorities)",
        "",
    ),
    ("Table", "size num_steps get_stored_size get_current_size get_size current_size", "len(table)", ""),
    ("Table", "buffer_size max_size maxlen max_capacity get_buffer_size", "table.capacity", ""),
    ("Table", "reset empty flush", "table.clear()", ""),
    ("Table", "remove pop", "table.delete(keys)", ""),
    ("Table", "info table_info server_info", "table.stats()", ""),
    ("Table", "full is_full", "len(table) == table.capacity", ""),
    ("Table", "can_sample ready", "table.num_items()", "sample waits until the limiter allows it"),
    ("Table", "beta alpha set_beta", _WEIGHTS, ""),
    ("Table", "dump checkpoint save_checkpoint write_checkpoint", "table.save(folder)", ""),
    ("Table", "load restore load_checkpoint", "relive.load(folder)", "it makes a new table"),
    ("Table", "name", "table.path", ""),
    ("Table", "end_episode on_episode_end end_trajectory", "writer.end_episode()", ""),
    ("Writer", "add insert push put store write record add_transition", "writer.append(...)", "one step of every lane"),
    ("Writer", "add_batch append_batch insert_batch extend_batch add_many", "writer.extend(...)", "[T, ...] steps"),
    ("Writer", "on_episode_end end_trajectory reset finish_episode", "writer.end_episode()", ""),
    ("Writer", "discard drop drop_episode abort abort_episode cancel", "writer.abandon(lanes)", ""),
    ("Writer", "flush commit", "writer.append(...)", "what append returned from is stored"),
    ("Writer", "sample", "table.sample(num_items)", ""),
    ("Batch", "weight is_weight is_weights importance_weights", _WEIGHTS, ""),
    (
        "Batch",
        "indices indexes index idx idxs tree_idxs sample_indices leaf_indices key ids",
        "batch.item_keys",
        "they never name another item",
    ),
    (
        "Batch",
        "item_keys num_items present probabilities num_live_items",
        "those of the batch that was drawn",
        "this one came out of a tree_map or a traced function that may have changed its rows",
    ),
    ("Batch", "priorities", "batch.probabilities", "mass / total of each item at the draw"),
    ("Batch", "size batch_size", "batch.num_items", ""),
    ("Batch", "shape", "len(batch)", "batch[column].shape is the shape of one column"),
    ("Batch", "to cuda cpu torch to_tensor", "batch.to_torch(device)", ""),
    ("Batch", "numpy to_numpy to_dict", "batch.flat()", "{flat name: array}"),
    ("Draw", "indices indexes index_array idx keys", "draw.item_keys", ""),
    (
        "relive",
        "ReplayBuffer PrioritizedReplayBuffer VectorReplayBuffer TensorDictReplayBuffer"
        " DictReplayBuffer PrioritizedVectorReplayBuffer TensorDictPrioritizedReplayBuffer",
        "relive.Table(spec, capacity)",
        "",
    ),
    ("relive", "Server", "relive.service.serve({'name': table})", "after `import relive.service`"),
    ("relive", "Client", "relive.connect('grpc://host:7070/name')", "or relive.attach('name') on one machine"),
    ("relive", "Spec TableSpec", "relive.StepSpec", ""),
    ("relive", "Box TensorSpec", "relive.ArraySpec", ""),
    ("relive", "SampleToInsertRatio RateLimiter", "relive.SamplesPerInsert(samples_per_insert, min_size)", ""),
    ("relive", "PrioritizedSampler PER", "relive.Prioritized", ""),
    ("relive", "UniformSampler RandomSampler", "relive.Uniform", ""),
    ("relive", "Shared SharedStorage", "relive.SharedMemory", ""),
    ("relive", "LazyMemmapStorage MemmapStorage Disk", "relive.Tiered", ""),
    ("relive", "LazyTensorStorage ListStorage Local", "relive.LocalMemory", ""),
    ("relive", "record", "relive.adapters.gymnasium.record", "after `import relive.adapters.gymnasium`"),
    ("relive", "service", "import relive.service", "a part of its own"),
    ("relive", "gpu", "import relive.gpu", "a part of its own"),
    ("relive", "adapters", "import relive.adapters.gymnasium", "a part of its own"),
)

# ---- columns ------------------------------------------------------------------------------------------------------

# Names of one thing: whichever of a line is declared is meant by the others.
_SAME_COLUMNS: tuple[str, ...] = (
    "observation obs observations ob state states",
    "next_observation next_obs obs_next next_observations next_ob next_state next_states new_obs new_observation obs2",
    "action act actions acts a",
    "reward rew rewards rews r",
    "terminated terminal terminals termination terminations is_terminal terminateds",
    "truncated truncation truncations timeouts truncateds",
    "discount discounts gamma gammas",
)
# Names that stand for no column, or not for one column: the names that are tried, the code to write, the reason. A row
# whose `instead` is the name of a column counts if that column is known.
_COLUMNS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("done", "dones"), "terminated", "and truncated= where a time limit cut the episode"),
    (
        ("done", "dones", "mask", "masks"),
        "discount",
        "0 after a termination; 'terminated' comes where columns= names it",
    ),
    (("terminated", "truncated"), "columns=[..., 'terminated']", "a batch has it where columns= names it"),
    (("priorities",), "priority=", "of the new items"),
    (("timeout",), "timeout_s=", "how long the call may wait; an episode cut by a time limit is truncated"),
    (("info", "infos"), "a column of the StepSpec", "declare one for each value that is wanted"),
    (("weight", "weights", "is_weight", "is_weights"), _WEIGHTS, "weights are made from a drawn batch"),
    (("index", "indices", "indexes", "idx", "idxs", "tree_idxs", "item_key", "item_keys"), "batch.item_keys", ""),
    (("probabilities", "probability", "probs"), "batch.probabilities", ""),
    (("cuda", "cpu", "cuda:0"), "table.sample(...).to_torch(device)", "or table.batches(..., device=...)"),
    (("('next', 'observation')",), "next_observation", ""),
    (("('next', 'reward')",), "reward", "a row holds the reward that followed its action"),
    (("('next', 'done')", "('next', 'terminated')"), "discount", "0 after a termination"),
)


def for_argument(callee: str, name: str, known: Iterable[str]) -> Slip | None:
    """The code to write in place of an argument of this class, function or method. known: its arguments."""
    near = _nearest(name, known)
    return _argument_of().get((callee, name)) or (Slip(f"{near}=") if near else None)


def for_attribute(owner: str, name: str, known: Iterable[str] = ()) -> Slip | None:
    """The code to write in place of an attribute of an owner ('Table', 'Batch', 'relive', ...)."""
    near = _nearest(name, known)
    return attribute_of().get((owner, name)) or (Slip(f"{owner.lower()}.{near}") if near else None)


def attributes(owner: str) -> tuple[str, ...]:
    """The names that are tried as attributes of an owner."""
    return tuple(name for whose, name in attribute_of() if whose == owner)


def for_column(name: str, known: Iterable[str]) -> Slip | None:
    """The known column, or the code, that this name stands for."""
    columns = dict.fromkeys(known)
    tops = dict.fromkeys(one.partition("/")[0] for one in columns)
    for meant in (name, *_SAME.get(name, ())):
        if meant in tops:
            return Slip(meant)
    if name.startswith("next_") and name[5:] in tops:
        return Slip(f"kind='state' in the ArraySpec of {name[5:]!r}", "only states have a next one")
    for names, instead, why in _COLUMNS:
        if name in names and (instead in tops or not instead.isidentifier()):
            return Slip(instead, why)
    below = next((one for one in columns if one.endswith("/" + name)), "")
    near = below or _nearest(name, (*tops, *columns))
    return Slip(near) if near else None


def for_missing(name: str, given: Iterable[str]) -> Slip | None:
    """The given column that was meant to be this one."""
    columns = tuple(given)
    same = next((one for one in columns if one in _SAME.get(name, ())), "")
    near = same or _nearest(name, columns, 0.8)
    return Slip(near) if near else None


def said(slip: Slip | None) -> str:
    """The way out as half a sentence; '' without one."""
    if slip is None:
        return ""
    is_name = slip.instead.replace("/", "_").isidentifier()
    return (f"; did you mean {slip.instead!r}?" if is_name else f"; use {slip.instead}") + (
        f" ({slip.why})" if slip.why else ""
    )


def _nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    is_next = name.startswith("next_")  # a state and its next_ column are never misspellings of each other
    candidates = [one for one in known if one.startswith("next_") == is_next]
    return _closest(name, candidates, cutoff)


def hint(name: str, known: Iterable[str]) -> str:
    """The nearest known name as half a sentence; '' without one."""
    close = _closest(name, list(known), 0.6)
    return f"; did you mean {close!r}?" if close else ""


def _closest(name: str, candidates: list[str], cutoff: float) -> str:
    from difflib import get_close_matches  # here, so that `import relive` does not wait for it

    return next(iter(get_close_matches(name, candidates, n=1, cutoff=cutoff)), "")


@cache  # made for the first refused name, so that `import relive` does not wait for it
def _argument_of() -> Mapping[tuple[str, str], Slip]:
    return {
        (callee, name): Slip(instead, why)
        for callees, names, instead, why in _ARGUMENTS
        for callee in callees.split()
        for name in names.split()
    }


@cache
def attribute_of() -> Mapping[tuple[str, str], Slip]:
    """The code to write in place of each attribute that is tried, by owner and name."""
    return {(owner, name): Slip(instead, why) for owner, names, instead, why in _ATTRIBUTES for name in names.split()}


_SAME = {name: tuple(names.split()) for names in _SAME_COLUMNS for name in names.split()}
# Names of columns in other libraries.
COLUMN_NAMES = (*_SAME, *(name for names, _, _ in _COLUMNS for name in names))

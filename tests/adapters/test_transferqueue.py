"""TransferQueue's storage on a table, in a TransferQueue system of one machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transfer_queue", reason="TransferQueue is not installed here: make test-adapters")

import ray  # noqa: E402
import torch  # noqa: E402
import transfer_queue as tq  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from processes.shm import shared_files  # noqa: E402
from tensordict import NonTensorStack, TensorDict  # noqa: E402
from transfer_queue.storage import AsyncSimpleStorageManager  # noqa: E402

from relive.adapters.errors import GoneValues, NotOffered  # noqa: E402
from relive.adapters.transferqueue import FieldGone, ReliveStorageManager, make_store  # noqa: E402
from relive.errors import InvalidConfig, UnknownArgument  # noqa: E402

torch.set_num_threads(1)
NAME = "transferqueue-of-tests"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    sampler = tq.GRPOGroupNSampler(n_samples_per_prompt=2)
    backend = {"storage_backend": "relive", "relive": {"capacity": "64MiB", "name": NAME}}
    settings = {"backend": backend, "controller": {"polling_mode": True, "sampler": sampler}}
    tq.init(OmegaConf.create(settings, flags={"allow_objects": True}))
    yield tq.get_client()
    tq.close()
    ray.shutdown()
    assert shared_files(NAME) == []


def rows(*lengths: int) -> TensorDict:
    """Rollouts whose tokens are 0, 1, 2, ..."""
    tokens = torch.nested.as_nested_tensor([torch.arange(length) for length in lengths], layout=torch.jagged)
    return TensorDict({"tokens": tokens}, [len(lengths)])


def lists(column: Any) -> list[Any]:
    return [row.tolist() if isinstance(row, torch.Tensor) else row for row in column]


def live_blocks(client: Any) -> int:
    return len(client.storage_manager.store.table)


def test_the_setting_chooses_the_backend(client: Any) -> None:
    assert isinstance(client.storage_manager, ReliveStorageManager)


def test_columns_have_the_types_of_the_library_s_own_storage(client: Any) -> None:
    fields = rows(5, 3, 1)
    fields["dense"] = torch.arange(12.0).reshape(3, 4)
    fields["deep"] = torch.zeros(3, 2, 5, dtype=torch.bfloat16)
    fields["score"] = torch.tensor([1.0, 2.0, 3.0])
    fields["flag"] = torch.tensor([True, False, True])
    fields["object"] = NonTensorStack("a", {"b": 1}, None)
    meta = tq.kv_batch_put(keys=["a", "b", "c"], partition_id="types", fields=fields, tags=[{"n": n} for n in range(3)])
    assert sorted(meta.fields) == sorted(fields.keys()) and meta.tags[2] == {"n": 2}
    found = tq.kv_batch_get(keys=["c", "a"], partition_id="types")
    for name in fields.keys():
        column = fields.get(name)
        values = column.unbind() if isinstance(column, torch.Tensor) else column.tolist()
        theirs = AsyncSimpleStorageManager._pack_field_values([values[2], values[0]])
        ours = found.get(name)
        assert type(ours) is type(theirs), name
        if isinstance(ours, torch.Tensor):
            assert (ours.dtype, ours.layout) == (theirs.dtype, theirs.layout), name
            ours, theirs = ours.unbind(), theirs.unbind()
        assert lists(ours) == lists(theirs), name
    tq.kv_clear(keys=["a", "b", "c"], partition_id="types")
    assert live_blocks(client) == 0


def test_groups_wait_for_late_rewards_and_are_claimed_once(client: Any) -> None:
    meta = client.put(rows(4, 4, 2, 2), partition_id="late")
    wanted = {"data_fields": ["tokens", "reward"], "batch_size": 2, "partition_id": "late", "task_name": "learn"}
    assert client.get_meta(**wanted).size == 0
    client.put(TensorDict({"reward": torch.ones(3)}, [3]), metadata=meta.select_samples([0, 2, 3]))
    claimed = client.get_meta(**wanted)
    data = client.get_data(claimed)
    assert lists(data["tokens"].unbind()) == [[0, 1], [0, 1]] and data["reward"].tolist() == [1.0, 1.0]
    assert client.get_meta(**wanted).size == 0
    client.put(TensorDict({"reward": torch.zeros(1)}, [1]), metadata=meta.select_samples([1]))
    assert client.get_data(client.get_meta(**wanted))["reward"].tolist() == [1.0, 0.0]
    assert client.get_meta(**{**wanted, "task_name": "judge"}).size == 2
    client.clear_partition("late")
    assert live_blocks(client) == 0


def test_a_process_that_imports_no_adapter_reads_and_writes(client: Any) -> None:
    tq.kv_batch_put(keys=["a", "b"], partition_id="other", fields=rows(2, 3))

    @ray.remote(num_cpus=0)
    def other() -> list[list[int]]:
        import transfer_queue

        transfer_queue.init()
        reward = TensorDict({"reward": torch.ones(2)}, [2])
        transfer_queue.kv_batch_put(keys=["a", "b"], partition_id="other", fields=reward)
        found = transfer_queue.kv_batch_get(keys=["b", "a"], partition_id="other", select_fields="tokens")
        return [row.tolist() for row in found["tokens"].unbind()]

    assert ray.get(other.remote()) == [[0, 1, 2], [0, 1]]
    assert tq.kv_batch_get(keys=["a"], partition_id="other")["reward"].tolist() == [1.0]
    tq.kv_clear(keys=["a", "b"], partition_id="other")


def test_a_field_that_is_put_again_takes_the_place_of_the_old_one(client: Any) -> None:
    tq.kv_batch_put(keys=["a"], partition_id="again", fields=rows(9000))
    before = live_blocks(client)
    tq.kv_batch_put(keys=["a"], partition_id="again", fields=rows(2))
    assert live_blocks(client) < before
    assert lists(tq.kv_batch_get(keys=["a"], partition_id="again")["tokens"].unbind()) == [[0, 1]]
    tq.kv_clear(keys=["a"], partition_id="again")


def test_a_cleared_field_is_named_by_an_error_of_both_libraries(client: Any) -> None:
    meta = client.put(rows(2, 2), partition_id="gone")
    client.clear_samples(meta)
    with pytest.raises(FieldGone, match="value 0 of this call is gone") as raised:
        client.get_data(meta)
    assert isinstance(raised.value, tq.StorageKeyNotFoundError) and isinstance(raised.value, GoneValues)


def test_a_large_put_leaves_the_event_loop(client: Any) -> None:
    began = time.monotonic()
    meta = client.put(rows(200_000, 3), partition_id="large")
    assert client.get_data(meta)["tokens"].unbind()[0].shape == (200_000,) and time.monotonic() - began < 30
    client.clear_samples(meta)


def test_wrong_settings_are_refused(client: Any) -> None:
    with pytest.raises(NotOffered, match="data_parser"):
        client.put(rows(1), partition_id="parsed", data_parser=lambda data: data)
    for relive, error, text in (
        ({"size": 3}, UnknownArgument, "capacity"),
        ({"capacity": "much"}, InvalidConfig, "capacity"),
        ({"block_bytes": 3}, InvalidConfig, "block_bytes"),
        ("64MiB", InvalidConfig, "a mapping"),
    ):
        with pytest.raises(error, match=text):
            make_store(OmegaConf.create({"backend": {"relive": relive}}))
    with pytest.raises(InvalidConfig, match=r"tq.init\(\)"):
        ReliveStorageManager(None, {"name": "nowhere"})
    assert [
        path for path in Path("/dev/shm").iterdir() if "transferqueue-" in path.name and NAME not in path.name
    ] == []

"""NeMo-RL's data plane on a table: the eight calls, against a stand-in of their abstract class."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensordict", reason="tensordict is not installed here: make test-adapters")

import torch  # noqa: E402
from tensordict import NonTensorStack, TensorDict  # noqa: E402

from adapters.data_plane import stand_in  # noqa: E402
from relive.config.storage import SharedMemory  # noqa: E402

STANDS_IN = stand_in()

from relive.adapters.errors import GoneValues, NotOffered, NotProduced, NotRegistered  # noqa: E402
from relive.adapters.nemo_rl import ReliveDataPlaneClient  # noqa: E402
from relive.errors import DeadlineExceeded, InvalidConfig, NoSuchTable, UnknownArgument  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def name(shm_name: Any) -> str:
    return str(shm_name())


@pytest.fixture
def client(name: str) -> Iterator[Any]:
    made = ReliveDataPlaneClient({"relive": {"name": name, "capacity": "64MiB"}})
    made.register_partition("train", ["tokens", "reward"], 0, ["learn", "judge"])
    yield made
    made.close()


def rows(*lengths: int) -> TensorDict:
    """Rollouts whose tokens are 0, 1, 2, ..."""
    tokens = torch.nested.as_nested_tensor([torch.arange(length) for length in lengths], layout=torch.jagged)
    return TensorDict({"tokens": tokens}, [len(lengths)])


def test_fields_come_back_with_their_types_and_shapes(client: Any) -> None:
    fields = rows(5, 3)
    fields["mask"] = torch.ones(2, 4, dtype=torch.bool)
    fields["half"] = torch.full((2, 3), 1.5, dtype=torch.bfloat16)
    fields["score"] = torch.tensor([1.0, 2.0])
    fields["none"] = torch.zeros(2, 0, 3)
    fields["log"] = NonTensorStack([{"role": "user"}], "text")
    meta = client.put_samples(["u_g0", "u_g1"], "train", fields, [{"input_lengths": 5}, {"input_lengths": 3}])
    assert meta.fields == sorted(fields.keys(), key=list(fields.keys()).index) and meta.tags[1] == {"input_lengths": 3}
    found = client.get_samples(["u_g1", "u_g0"], "train", ["tokens", "mask", "half", "score", "none", "log"])
    assert found["none"].shape == (2, 0, 3)
    assert [row.tolist() for row in found["tokens"].unbind()] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert torch.equal(found["mask"], fields["mask"]) and torch.equal(found["half"], fields["half"])
    assert found["score"].tolist() == [2.0, 1.0] and found["score"].dtype == torch.float32
    assert found.get("log").tolist() == ["text", [{"role": "user"}]]


def test_a_claim_waits_for_late_rewards_and_is_made_once(client: Any, name: str) -> None:
    other = ReliveDataPlaneClient({"relive": {"name": name}}, bootstrap=False)
    client.put_samples(["a", "b"], "train", rows(2, 2), [{"input_lengths": 2}] * 2)
    assert client.claim_meta("train", "learn", ["tokens", "reward"], 2, blocking=False).sample_ids == []
    with pytest.raises(DeadlineExceeded):
        client.claim_meta("train", "learn", ["tokens", "reward"], 2, timeout_s=0.02)
    other.put_samples(["b", "a"], "train", TensorDict({"reward": torch.tensor([1.0, 0.0])}, [2]))
    meta = other.claim_meta("train", "learn", ["tokens", "reward"], 2)
    assert (meta.sample_ids, meta.sequence_lengths, meta.task_name) == (["a", "b"], [2, 2], "learn")
    found = client.get_data(meta)
    assert found["reward"].tolist() == [0.0, 1.0] and found["tokens"].tolist() == [[0, 1], [0, 1]]
    assert set(client.get_data(meta, ["reward"]).keys()) == {"reward"}
    assert client.check_consumption_status("train", ["learn"])
    assert not client.check_consumption_status("train", ["learn", "judge"])
    other.close()


def test_groups_are_claimed_whole(client: Any) -> None:
    client.register_partition("val", [], 0, ["learn"], grpo_group_size=2)
    client.put_samples(["p_g0", "q_g0", "q_g1"], "val", rows(1, 1, 1))
    assert client.claim_meta("val", "learn", ["tokens"], 2).sample_ids == ["q_g0", "q_g1"]


def test_old_weights_are_left_out(name: str) -> None:
    client = ReliveDataPlaneClient({"relive": {"name": name, "capacity": "64MiB", "max_staleness": 1}})
    client.register_partition("train", [], 0, ["learn"])
    client.put_samples(["old", "new"], "train", rows(1, 1), [{"weight_version": 1}, {"weight_version": 2}])
    client.set_weight_version(3)
    assert client.claim_meta("train", "learn", ["tokens"], 2, blocking=False).sample_ids == ["new"]
    client.close()


def test_cleared_samples_are_gone_and_their_memory_is_free(client: Any) -> None:
    client.put_samples(["a", "b"], "train", rows(3000, 3000))
    client.put_samples(["a"], "train", TensorDict({"reward": torch.ones(1)}, [1]))
    client.put_samples(["a"], "train", TensorDict({"reward": torch.zeros(1)}, [1]))  # replaces the first one
    assert client.get_samples(["a"], "train", ["reward"])["reward"].tolist() == [0.0]
    client.clear_samples(["a"], "train")
    with pytest.raises(NotProduced, match="sample 'a' of partition 'train' has no field 'tokens'"):
        client.get_samples(["a"], "train", ["tokens"])
    assert client.get_samples(["b"], "train", ["tokens"])["tokens"].shape == (1, 3000)
    client.clear_samples(None, "train")
    assert len(client._store.table) == 0
    assert client.get_samples([], "train", ["tokens"]).batch_size == (0,)


def test_a_full_store_names_the_fields_that_it_dropped(name: str) -> None:
    options = {"name": name, "capacity": 640, "block_bytes": 64, "max_processes": 2}
    client = ReliveDataPlaneClient({"relive": options})
    client.register_partition("train", [], 0, ["learn"])
    client.put_samples(["first"], "train", rows(8))
    for number in range(40):
        client.put_samples([f"s{number}"], "train", rows(300))
    with pytest.raises(GoneValues, match="is gone from the store"):
        client.get_samples(["first"], "train", ["tokens"])
    client.close()


def test_wrong_calls_are_refused_with_the_way_out(client: Any, name: str) -> None:
    with pytest.raises(NotRegistered, match="partition 'val'"):
        client.put_samples(["a"], "val", rows(1))
    assert len(client._store.table) == 0  # the refused put left nothing
    with pytest.raises(NotRegistered, match="task 'train'"):
        client.claim_meta("train", "train", ["tokens"], 1)
    with pytest.raises(InvalidConfig, match="2 mappings"):
        client.put_samples(["a", "b"], "train", rows(1, 1), [{}])
    with pytest.raises(InvalidConfig, match="1 rows, one for each sample"):
        client.put_samples(["a"], "train", rows(1, 1))
    with pytest.raises(InvalidConfig, match="names that differ"):
        client.put_samples(["a", "a"], "train", rows(1, 1))
    with pytest.raises(InvalidConfig, match="names of fields"):
        client.get_data(client.put_samples(["a"], "train", tags=[{}]))
    with pytest.raises(NotOffered, match="enums"):
        client.register_partition("val", [], 0, [], enums={"role": ["user"]})
    with pytest.raises(UnknownArgument, match="capacity"):
        ReliveDataPlaneClient({"relive": {"size": 1}})
    with pytest.raises(NoSuchTable):
        ReliveDataPlaneClient({"relive": {"name": name + "-other"}}, bootstrap=False)


def test_close_leaves_nothing_behind(name: str) -> None:
    client = ReliveDataPlaneClient({"relive": {"name": name, "capacity": "64MiB"}})
    client.close()
    client.close()
    folder = Path(SharedMemory(name).path).parent
    assert [path for path in folder.iterdir() if name in path.name] == []


def test_the_client_is_a_subclass_and_a_missing_library_is_named() -> None:
    import nemo_rl.data_plane.interfaces as interfaces

    assert issubclass(ReliveDataPlaneClient, interfaces.DataPlaneClient)
    if STANDS_IN:
        line = [sys.executable, "-c", "import relive.adapters.nemo_rl"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert "MissingPackage: relive.adapters.nemo_rl needs nemo_rl: install NeMo-RL" in done.stderr

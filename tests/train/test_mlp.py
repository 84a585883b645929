"""Flat parameters, the perceptron with its backward written out, and Adam: each against torch's own."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from relive.agents.conv import ConvNetwork  # noqa: E402
from relive.agents.mlp import MLP, Adam, FlatParameters  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402

CPU = torch.device("cpu")


def made(sizes: tuple[int, ...], seed: int = 0) -> FlatParameters:
    parameters = FlatParameters(MLP.shapes("net", sizes), CPU)
    parameters.initialise(torch.Generator().manual_seed(seed))
    return parameters


def reference(parameters: FlatParameters) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    names = [name.removesuffix(".weight") for name in parameters.shapes if name.endswith(".weight")]
    for name in names:
        num_outputs, num_inputs = parameters.shapes[f"{name}.weight"]
        layer = torch.nn.Linear(num_inputs, num_outputs)
        with torch.no_grad():
            layer.weight.copy_(parameters.value[f"{name}.weight"])
            layer.bias.copy_(parameters.value[f"{name}.bias"])
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("sizes", [(3, 1), (4, 8, 2), (5, 64, 33, 7), (17, 256, 256, 12), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_gradients_agree_with_autograd(sizes: tuple[int, ...], rows: int) -> None:
    parameters = made(sizes)
    network, naive = MLP(parameters, "net", rows), reference(parameters)
    for seed in range(3):  # buffers are used again: nothing of the batch before may be left in them
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(rows, sizes[0], generator=generator)
        gradient = torch.randn(rows, sizes[-1], generator=generator)
        theirs = inputs.clone().requires_grad_()
        expected = naive(theirs)
        expected.backward(gradient)
        torch.testing.assert_close(network.forward(inputs), expected.detach(), rtol=1e-5, atol=1e-5)
        network.backward(gradient)
        mine = [parameters.gradient[name] for name in parameters.shapes]
        for view, parameter in zip(mine, naive.parameters(), strict=True):
            torch.testing.assert_close(view, parameter.grad, rtol=1e-5, atol=1e-5)
            parameter.grad = None
        before = parameters.gradients.clone()
        torch.testing.assert_close(network.input_gradient(gradient), theirs.grad, rtol=1e-5, atol=1e-5)
        assert torch.equal(parameters.gradients, before)


@pytest.mark.parametrize("sizes", [(3, 8, 1), (14, 32, 16, 2), (40, 16, 1)])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_gradients_of_some_inputs_and_of_some_rows(sizes: tuple[int, ...], first: int) -> None:
    rows = 12
    network, naive = MLP(parameters := made(sizes), "net", rows), reference(parameters)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, sizes[0], generator=generator).requires_grad_()
    gradient = torch.randn(rows, sizes[-1], generator=generator)
    naive(inputs).backward(gradient)
    network.forward(inputs.detach())
    expected = inputs.grad[:, first:]
    torch.testing.assert_close(network.input_gradient(gradient, first), expected, rtol=1e-5, atol=1e-5)
    for chosen in ([3, 5, 11], [], list(range(rows))):  # as many as there are, and none
        some = torch.tensor(chosen, dtype=torch.int64)
        found = network.input_gradient_of(some, gradient[some], first)
        torch.testing.assert_close(found, expected[some], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(3, 64, 48, 2), (40, 64, 64, 64, 1)])
def test_low_precision_rounds_the_products_of_wide_layers(sizes: tuple[int, ...]) -> None:
    """To bfloat16's 8 bits: forward, both gradients, and what a forward on other rows leaves behind."""
    rows = 24
    parameters = made(sizes)
    network, naive = MLP(parameters, "net", rows, low=True), reference(parameters)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(rows, sizes[0], generator=generator).requires_grad_()
        gradient = torch.randn(rows, sizes[-1], generator=generator)
        expected = naive(inputs)
        expected.backward(gradient)
        got = network.forward(inputs.detach())
        network.backward(gradient)
        assert got.dtype == torch.float32 and not torch.equal(got, expected)
        pairs = [(got, expected.detach()), (network.input_gradient(gradient).clone(), inputs.grad)]
        some = torch.tensor([1, 5, 20])
        pairs.append((network.input_gradient_of(some, gradient[some]), inputs.grad[some]))
        for view, parameter in zip(parameters.gradient.values(), naive.parameters(), strict=True):
            pairs.append((view, parameter.grad))
            parameter.grad = None
        for mine, theirs in pairs:
            assert float((mine - theirs).norm()) < 0.3 * float(theirs.norm())  # a relu may turn over
        with torch.no_grad():  # other weights: they are read anew
            parameters.values.mul_(1.5)
            for parameter in naive.parameters():
                parameter.mul_(1.5)


def test_inputs_may_be_a_part_of_wider_rows() -> None:
    parameters = made((3, 16, 2))
    wide = torch.randn(8, 9, generator=torch.Generator().manual_seed(0))
    narrow = wide[:, 2:5].contiguous()
    gradient = torch.ones(8, 2)
    one, other = MLP(parameters, "net", 8), MLP(parameters, "net", 8)
    torch.testing.assert_close(one.forward(wide[:, 2:5]), other.forward(narrow))
    one.backward(gradient)
    first = parameters.gradients.clone()
    other.backward(gradient)
    torch.testing.assert_close(parameters.gradients, first)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_adam_is_torchs(clip: float) -> None:
    parameters = made((4, 16, 2))
    theirs = [value.clone().requires_grad_() for value in parameters.value.values()]
    mine, naive = Adam(parameters, epsilon=1e-5, max_gradient_norm=clip), torch.optim.Adam(theirs, lr=0.0, eps=1e-5)
    generator = torch.Generator().manual_seed(3)
    for step in range(20):
        for name, tensor in zip(parameters.shapes, theirs, strict=True):
            # Now clipped, now not: where all are clipped Adam does not see by how much.
            tensor.grad = torch.randn(tensor.shape, generator=generator) * (1.0 if step % 2 else 0.01)
            parameters.gradient[name].copy_(tensor.grad)
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        for group in naive.param_groups:
            group["lr"] = 1e-2 / (1 + step)
        naive.step()
        mine.step(1e-2 / (1 + step))
    for name, tensor in zip(parameters.shapes, theirs, strict=True):
        torch.testing.assert_close(parameters.value[name], tensor.detach(), rtol=1e-5, atol=1e-6)


def test_parameters_are_views_of_one_vector() -> None:
    parameters = made((3, 5, 2))
    assert parameters.values.numel() % 16 == 0
    parameters.values.fill_(2.0)
    assert all(bool((value == 2.0).all()) for value in parameters.value.values())
    other = parameters.copy()
    parameters.values.fill_(4.0)
    other.follow(parameters, 0.25)
    assert all(bool((value == 2.5).all()) for value in other.value.values())
    host = parameters.on_host()
    parameters.values.zero_()
    assert {name: value.shape for name, value in host.items()} == parameters.shapes
    assert all((value == 4.0).all() and value.dtype == np.float32 for value in host.values())


def test_initial_values_come_from_the_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second, other = made((4, 8, 2)), made((4, 8, 2)), made((4, 8, 2), seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.values, second.values) and not torch.equal(first.values, other.values)
    assert float(first.value["net.0.weight"].abs().max()) <= 0.5 and float(first.values.abs().max()) > 0.3


def test_a_state_of_other_networks_is_refused_and_changes_nothing() -> None:
    parameters = made((3, 5, 2))
    before = parameters.values.clone()
    with pytest.raises(InvalidConfig):
        parameters.load_state_dict(made((3, 6, 2), seed=1).state_dict())
    with pytest.raises(InvalidConfig):
        Adam(parameters).load_state_dict(Adam(made((3, 60, 2))).state_dict())
    assert torch.equal(parameters.values, before)


def test_convolutions_write_their_gradients_into_the_vector() -> None:
    parameters = FlatParameters(ConvNetwork.shapes("q", 2, (8, 3)), CPU)
    parameters.initialise(torch.Generator().manual_seed(0))
    network = ConvNetwork(parameters, "q", learns=True)
    frames = torch.randint(0, 256, (2, 2, 84, 84), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    still = ConvNetwork(parameters.copy(), "q", learns=False).forward(frames)
    for _ in range(2):  # the second does not add to the first
        outputs = network.forward(frames)
        assert torch.equal(outputs, still) and not outputs.requires_grad
        network.backward(torch.ones(2, 3))
    torch.testing.assert_close(parameters.gradient["q.1.bias"], torch.full((3,), 2.0))
    name, step = "conv.0.weight", 1e-2
    expected = parameters.gradient[name][3, 1, 2, 5].item()
    sums = []
    for sign in (1.0, -1.0):
        other = parameters.copy()
        other.value[name][3, 1, 2, 5] += sign * step
        sums.append(ConvNetwork(other, "q", learns=False).forward(frames).to(torch.float64).sum().item())
    assert (sums[0] - sums[1]) / (2 * step) == pytest.approx(expected, rel=0.05, abs=1e-3)

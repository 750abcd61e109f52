"""memload.offload on the simulated device, whose copies and computations are late, in other threads, and poisoned."""

import copy
import gc
import warnings

import pytest
import torch
from late_reading import shows
from simulated import SimulatedInterface
from torch import nn

import memload
from memload.device import offload as offloading
from memload.device.offload import Offloaded
from memload.device.weights import layers_of

LATE = (0, 1500)  # microseconds


def simulated(**how):
    return SimulatedInterface(copies=LATE, loop=LATE, **how)


class Reader(nn.Module):
    """Reads its weight late in the loop's stream, as a kernel that was launched does."""

    def __init__(self, number, elements=4096):
        super().__init__()
        self.weight = nn.Parameter(torch.full((elements,), float(number)), requires_grad=False)

    def forward(self, readings):
        # outside of `interface.launch`, since the calling thread does not wait for a kernel
        return [*readings, self.interface.read(self.weight.detach())]


def readers(interface, count=6):
    net = nn.Sequential(*map(Reader, range(count)))
    for layer in net:
        layer.interface = interface
    return net


def passed(offloaded, passes=3, prefetch=False):
    """What each layer of readers read, over some passes."""
    readings = []
    for _ in range(passes):
        if prefetch:
            offloaded.prefetch()
        with offloaded as net:
            readings += net([])
    return [float(values[0]) if values.eq(values[0]).all() else "torn" for values in (read() for read in readings)]


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
def test_every_layer_reads_its_own_weights_however_late_copies_and_kernels_are(layerwise, prefetch):
    for seed in range(3):
        interface = simulated(seed=seed)
        net = readers(interface)
        assert passed(Offloaded(net, interface, layerwise), prefetch=prefetch) == [*map(float, range(6))] * 3
        assert [float(layer.weight[0]) for layer in net] == [*map(float, range(6))]


class LeavesOut(SimulatedInterface):
    """Does not let one of its streams wait."""

    def __init__(self, stream, **how):
        super().__init__(**how)
        self._deaf = getattr(self, stream) if stream == "copies" else self.current()

    def wait(self, stream, event):
        if stream != self._deaf:
            super().wait(stream, event)


@pytest.mark.parametrize(
    ("layerwise", "stream", "late"),
    [
        (False, "current", {"copies": (2000, 3000), "loop": (0, 0)}),  # kernels before the weights are there
        (True, "current", {"copies": (2000, 3000), "loop": (0, 0)}),
        (True, "copies", {"copies": (0, 0), "loop": (2000, 3000)}),  # weights where a kernel still reads others
    ],
)
def test_each_wait_that_is_left_out_shows(layerwise, stream, late):
    def is_caught_without(late):
        interface = LeavesOut(stream, **late)
        return passed(Offloaded(readers(interface), interface, layerwise)) != [*map(float, range(6))] * 3

    assert shows(is_caught_without, late)


def launched(net, interface):
    """Let each submodule, or the module if it has none, compute on the simulated device."""
    for part in list(net) if isinstance(net, nn.Sequential) else [net]:
        compute = part.forward
        part.forward = lambda *args, compute=compute: interface.launch(interface.current(), compute, *args)
    return net


def tied():
    net = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 12))
    net[2].weight = net[0].weight
    return net, torch.arange(12)


def convolutional():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    return net.to(memory_format=torch.channels_last), torch.rand(2, 3, 9, 9).contiguous(
        memory_format=torch.channels_last
    )


def recurrent():
    return nn.LSTM(5, 7, num_layers=2), torch.rand(6, 3, 5)


def half():
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3, bias=False)).bfloat16(), torch.rand(
        4, 6
    ).bfloat16()


@pytest.mark.parametrize("made", [tied, convolutional, recurrent, half])
@pytest.mark.parametrize("layerwise", [False, True])
def test_outputs_are_the_same_to_the_bit(made, layerwise):
    torch.manual_seed(0)
    net, x = made()
    net.eval().requires_grad_(False)
    with torch.no_grad():
        expected = net(x)
    interface = simulated()
    offloaded = Offloaded(launched(net, interface), interface, layerwise)
    before = {name: (value.shape, value.stride()) for name, value in net.state_dict().items()}
    for _ in range(2):
        with offloaded as module, torch.no_grad():
            got = module(x)
        interface.synchronise(interface.record(interface.current()))
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    assert {name: (value.shape, value.stride()) for name, value in net.state_dict().items()} == before


@pytest.mark.parametrize("layerwise", [False, True])
def test_the_weights_are_on_the_device_within_with_alone_and_the_module_has_its_own_otherwise(layerwise):
    interface = simulated()
    net = readers(interface)
    own = list(net.parameters())
    offloaded = Offloaded(net, interface, layerwise)
    assert all(interface.is_pinned(parameter) for parameter in own)
    seen = []
    net[3].register_forward_pre_hook(lambda *_: seen.append([interface.is_there(each.weight) for each in net]))
    with offloaded:
        net([])
    assert seen == [[False, False, False, True, False, False] if layerwise else [True] * 6]
    assert all(mine is theirs for mine, theirs in zip(net.parameters(), own, strict=True))
    assert offloaded.nbytes == 6 * 4096 * 4
    assert offloaded.device_nbytes == (2 if layerwise else 6) * 4096 * 4


def test_nested_blocks_are_one_and_an_exception_inside_puts_everything_back():
    interface = simulated()
    net = readers(interface)
    for layerwise in (False, True):
        offloaded = Offloaded(net, interface, layerwise)
        own = list(net.parameters())
        with offloaded, pytest.raises(ArithmeticError), offloaded:
            raise ArithmeticError
        with pytest.raises(KeyError), offloaded as module:
            module[4].register_forward_pre_hook(_raises)
            module([])
        net[4]._forward_pre_hooks.clear()
        assert all(mine is theirs for mine, theirs in zip(net.parameters(), own, strict=True))
        assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in net)
        assert passed(offloaded, passes=1) == [*map(float, range(6))]


def _raises(*_):
    raise KeyError


@pytest.mark.parametrize("layerwise", [False, True])
def test_memory_is_not_used_again_before_another_stream_is_done_with_it(layerwise):
    interface = SimulatedInterface(copies=(0, 0), loop=(0, 0))
    slow, held, hold = interface.simulated.add_stream(5_000, 5_000, 7), [], interface.hold
    interface.hold = lambda memory, stream: (held.append(stream), hold(memory, stream))
    offloaded = Offloaded(readers(interface, 2), interface, layerwise)
    with offloaded as net:
        net([])
    assert held == []  # it belongs to the stream that used it
    offloaded.prefetch()
    with interface.on(slow), offloaded as net:
        readings = net([])
    assert held == [slow] * (2 if layerwise else 1)
    interface.empty(offloaded.device_nbytes, interface.current())
    assert [float(read()[0]) for read in readings] == [0.0, 1.0]


def test_what_was_prefetched_and_never_used_leaves_no_trace():
    interface = simulated()
    for layerwise in (False, True):
        offloaded = Offloaded(readers(interface), interface, layerwise)
        offloaded.prefetch()
        offloaded.prefetch()
        del offloaded
        gc.collect()
        again = Offloaded(readers(interface), interface, layerwise)
        assert passed(again, passes=1) == [*map(float, range(6))]


def test_buffers_that_a_module_in_training_mode_writes_to_come_back():
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).requires_grad_(False)
    plain, x = copy.deepcopy(net), torch.rand(8, 4)
    interface = simulated()
    for layerwise in (False, True):
        module = launched(copy.deepcopy(net), interface)
        with Offloaded(module, interface, layerwise) as there:
            there(x)
        plain[0].reset_running_stats()
        plain(x)
        assert torch.equal(module[0].running_mean, plain[0].running_mean)
        assert int(module[0].num_batches_tracked) == 1
        assert not torch.equal(module[0].running_mean, net[0].running_mean)


def test_what_is_written_to_weights_on_the_device_comes_back_and_what_changed_its_shape_is_an_error():
    interface = simulated()
    net = readers(interface, 3)
    offloaded = Offloaded(net, interface, False)

    def double():
        with torch.no_grad():
            net[1].weight.mul_(2)

    with offloaded:
        interface.launch(interface.current(), double)
    assert [float(layer.weight.mean()) for layer in net] == [0.0, 2.0, 2.0]
    assert passed(offloaded, passes=1) == [0.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="weight got another shape or dtype on the device"), offloaded:
        net[2].weight = nn.Parameter(torch.zeros(3), requires_grad=False)
    assert passed(offloaded, passes=1) == [0.0, 2.0, 2.0]


def test_gradients_go_through_a_frozen_module_to_its_input_also_after_the_block():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).requires_grad_(False), torch.rand(5, 4)
    expected = x.clone().requires_grad_()
    net(expected).sum().backward()
    interface = SimulatedInterface(copies=(0, 0), loop=(0, 0))
    given = x.clone().requires_grad_()
    offloaded = Offloaded(net, interface, False)
    with offloaded as module:
        interface.synchronise(interface.record(interface.current()))
        loss = module(given).sum()
    loss.backward()  # the graph keeps the weights that it needs
    assert torch.equal(given.grad, expected.grad)
    refused = pytest.raises(RuntimeError, match=r"a Linear is offloaded layer by layer .* torch.no_grad\(\)")
    with refused, Offloaded(net, interface, True) as module:
        module(given)


def test_layers_are_followed_in_the_order_in_which_they_are_called():
    interface = simulated()
    net = readers(interface, 4)
    copied = []
    copying, sources = interface.copy, {}
    interface.copy = lambda to, source, stream: (copied.append(sources[source.data_ptr()]), copying(to, source, stream))
    offloaded = Offloaded(net, interface, True)
    sources.update({layer.weight.data_ptr(): number for number, layer in enumerate(net)})
    order = [2, 0, 3, 0, 0, 1]
    for _ in range(2):
        copied.clear()
        with offloaded:
            readings = []
            for number in order:
                readings = net[number](readings)
        assert [float(read()[0]) for read in readings] == order
    assert copied[:2] == [2, 0]  # as they were called the first time
    assert len(copied) <= len(order) + 2


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.embed = nn.Embedding(3, 4)
        self.stem = nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU(), nn.BatchNorm1d(1))
        self.body = nn.Module()
        self.body.blocks = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 8) for _ in range(2)])
        self.body.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


def test_layers_are_the_elements_of_containers_and_what_lies_beside_them():
    net = Named()
    expected = [net.embed, net.stem[0], net.stem[2], *net.body.blocks, net.body.norm, net.head]
    assert layers_of(net) == expected
    offloaded = Offloaded(net.requires_grad_(False), simulated(), True)
    assert offloaded.device_nbytes < offloaded.nbytes
    only = Offloaded(net, simulated(), net.body.blocks)
    assert only.device_nbytes > offloaded.device_nbytes  # the others are there all the time


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda net: net[0].requires_grad_(True), ValueError, "0.weight requires a gradient: .*requires_grad_"),
        (lambda net: net[0].register_buffer("s", torch.eye(2).to_sparse()), TypeError, "0.s is torch.sparse_coo"),
        (lambda net: net.append(nn.LazyLinear(2)), TypeError, "2.weight is a UninitializedParameter"),
        (lambda net: net.append(nn.Linear(2, 2, device="meta")), TypeError, "2.weight .* on meta"),
    ],
)
def test_what_cannot_be_offloaded_is_named(change, error, message):
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    change(net)
    with pytest.raises(error, match=message):
        Offloaded(net, simulated(), False)


def test_layers_that_are_none_are_refused():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(ValueError, match="a Linear that is not in the module"):
        Offloaded(net, simulated(), [nn.Linear(2, 2)])
    with pytest.raises(ValueError, match="a submodule of another layer"):
        Offloaded(net, simulated(), [net[0], net])


def test_a_module_that_is_thawed_later_is_refused_when_it_is_used():
    interface = simulated()
    net = readers(interface)
    offloaded = Offloaded(net, interface, False)
    net[1].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"1\.weight requires a gradient"), offloaded:
        pass
    net[1].weight.requires_grad_(False)
    assert passed(offloaded, passes=1) == [*map(float, range(6))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_the_module_stays_where_it_is_and_a_warning_says_so_once():
    net = nn.Linear(2, 2).requires_grad_(False)
    address = net.weight.data_ptr()
    offloading._warn_of_no_gpu.cache_clear()
    with pytest.warns(RuntimeWarning, match="finds no CUDA device, so modules stay where they are"):
        offloaded = memload.offload(net, "cuda", layerwise=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memload.offload(net)
        memload.offload(net, "cpu")
    offloaded.prefetch()
    with offloaded as module:
        assert module is net
    assert net.weight.data_ptr() == address
    assert "stays where it is" in repr(offloaded)
    with pytest.raises(ValueError, match="serves CUDA devices"):
        memload.offload(net, "mps")
    with pytest.raises(TypeError, match="takes a torch"):
        memload.offload(lambda x: x)


@pytest.mark.gpu
@pytest.mark.parametrize("layerwise", [False, True])
def test_on_a_gpu_outputs_are_the_same_and_memory_comes_back(layerwise):
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU())])
    net.eval().requires_grad_(False)
    x = torch.rand(64, 2048, device="cuda")
    with torch.no_grad():
        expected = copy.deepcopy(net).cuda()(x)
    torch.cuda.synchronize()
    gc.collect()
    offloaded = memload.offload(net, "cuda", layerwise=layerwise)
    before = torch.cuda.memory_allocated()
    for step in range(5):
        if step % 2:
            offloaded.prefetch()
        torch.cuda.reset_peak_memory_stats()
        with offloaded as module, torch.no_grad():
            got = module(x)
        assert torch.equal(got, expected)
    assert torch.cuda.memory_allocated() - before <= got.nbytes + 1024
    assert torch.cuda.max_memory_allocated() - before <= offloaded.device_nbytes + 8 * got.nbytes

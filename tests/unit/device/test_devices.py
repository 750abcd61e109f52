"""What goes wrong on a GPU, in words that say what to do."""

import pytest
import torch
from torch.utils.data import IterableDataset

import memload
from memload.device.devices import device_of, lasting, no_such_device, raise_device_error, why_not

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("named", ["cuda:x", -1, "mps", "meta", "nonsense"])
def test_what_names_no_device_here_is_a_value_error_wherever_it_is_given(named):
    ds = memload.from_arrays(x=torch.zeros(4, 2))
    for given in (lambda: memload.FastLoader(ds, device=named), lambda: memload.to_device(ds, named)):
        with pytest.raises(ValueError, match="device="):
            given()


def test_a_device_is_named_by_text_number_or_itself():
    assert device_of("cpu") == device_of(torch.device("cpu")) == torch.device("cpu")
    for wrong in (None, 1.5, True, ["cuda"]):
        with pytest.raises(TypeError, match="takes a device such as"):
            device_of(wrong)
    with pytest.raises(ValueError, match="no device of torch's"):
        device_of("gpu")
    with pytest.raises(ValueError, match="has no data"):
        device_of("meta")


@pytest.mark.skipif("torch.backends.cuda.is_built()", reason="this torch was built with CUDA")
def test_a_torch_without_cuda_is_named_with_where_to_get_another():
    for given in ("cuda", "cuda:3", 0):
        with pytest.raises(memload.DeviceError, match=r"was built without CUDA.*pytorch.org/get-started"):
            device_of(given)


class InAWorker(IterableDataset):
    def __iter__(self):
        yield device_of("cuda")


def test_a_worker_process_is_told_to_leave_the_device_to_the_main_process():
    with pytest.raises(memload.DeviceError, match=r"in a worker process.*move batches in the main process"):
        next(iter(memload.FastLoader(InAWorker(), num_workers=1, batch_size=None)))


def test_each_reason_why_cuda_does_not_start_says_what_to_do():
    for said, advice in (
        ("Cannot re-initialize CUDA in forked subprocess. To use CUDA with ...", '"spawn"'),
        ("The NVIDIA driver on your system is too old (found version 11040)", "CUDA 13 wants 580"),
        ("Found no NVIDIA driver on your system", "--gpus all"),
        ("No CUDA GPUs are available", "nvidia-smi"),
    ):
        assert advice in why_not(said)


def test_a_number_that_is_not_there_is_told_with_those_that_are():
    assert "there is only cuda:0;" in no_such_device(1, 1, None)
    assert "cuda:0 to cuda:3, since CUDA_VISIBLE_DEVICES='4,5,6,7' shows no others" in no_such_device(4, 4, "4,5,6,7")


def test_out_of_memory_stays_what_torch_raises_and_says_what_takes_less():
    with pytest.raises(torch.OutOfMemoryError, match=r"a batch on cuda:0: no memory left.*tried 2 GiB.*memload.plan"):
        raise_device_error(torch.OutOfMemoryError("CUDA out of memory, tried 2 GiB\nmore"), "gathering a batch", CUDA)


def test_an_error_that_a_kernel_left_behind_is_not_taken_for_memloads():
    for said in (
        "CUDA error: an illegal memory access was encountered",
        "cudaEventQuery failed: cudaErrorIllegalAddress (an illegal memory access was encountered)",
        "CUDA error: device-side assert triggered",
        "cudaLaunchKernel failed: cudaErrorLaunchFailure (unspecified launch failure)",
    ):
        with pytest.raises(memload.DeviceError, match=r"earlier kernel left behind.*CUDA_LAUNCH_BLOCKING=1"):
            raise_device_error(RuntimeError(said), "copying a batch", CUDA)
    assert lasting("CUDA error: invalid argument") == ""


def test_memory_that_cannot_be_pinned_and_errors_that_nobody_knows_keep_their_cause():
    with pytest.raises(memload.DeviceError, match="could not be pinned") as found:
        raise_device_error(RuntimeError("cudaHostAlloc failed: cudaErrorMemoryAllocation"), "making slots", CUDA)
    assert "cudaHostAlloc" in str(found.value.__cause__)
    with pytest.raises(memload.DeviceError, match=r"driver has no memory left.*pinned"):  # torch names no call
        raise_device_error(
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might ..."), "making slots", CUDA
        )
    unknown = RuntimeError("CUDA error: something new")
    with pytest.raises(RuntimeError) as kept:
        raise_device_error(unknown, "copying a batch", CUDA)
    assert kept.value is unknown

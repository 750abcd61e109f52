"""memload's CUDA kernels, there when nvcc was found at build time."""

architectures: str
version: str

def cast_stim(
    src_address: int, dst_address: int, n: int, to_code: str, norm_removed: bool, device: int, stream: int
) -> None: ...
def unusable_reason(device: int) -> str: ...

"""``cudaDeviceProp`` and ``cudaFuncAttributes`` of a virtual GPU (CUDA 13.0), and the runtime's errors."""

from __future__ import annotations

import struct

from warpwright.programs.attributes import device_attributes
from warpwright.targets import Device

__all__ = ["ERRORS", "TOO_LARGE", "device_properties", "function_attributes"]

PROPERTIES, FUNCTION = 1008, 144  # bytes of the structs
# Offsets of fields of cudaDeviceProp, by the numbers of their attributes: 4 bytes, and 8 bytes.
WORDS = {
    12: 304, 10: 308, 1: 320, 2: 324, 3: 328, 4: 332, 5: 336, 6: 340, 7: 344, 75: 360, 76: 364, 16: 384, 18: 388,
    19: 392, 31: 560, 32: 564, 40: 584, 41: 588, 38: 596, 39: 604, 78: 608, 82: 632, 83: 636, 88: 652, 89: 656, 95: 668,
    106: 688, 115: 720, 120: 748,
}  # fmt: skip
LONGS = {8: 296, 9: 352, 81: 624, 97: 672, 111: 696}
NAME_BYTES, TOTAL_MEMORY, BUS_BITS = 256, 288, 592

TOO_LARGE = 720  # a grid that waits for all its CTAs has more than fit on the GPU
# Errors by their numbers: names in the runtime and in the driver, and the text of both.
ERRORS = {
    0: ("cudaSuccess", "CUDA_SUCCESS", "no error"),
    1: ("cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    9: ("cudaErrorInvalidConfiguration", "", "invalid configuration argument"),
    13: ("cudaErrorInvalidSymbol", "", "invalid device symbol"),
    98: ("cudaErrorInvalidDeviceFunction", "", "invalid device function"),
    100: ("cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    209: (
        "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device",
    ),
    218: ("cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    301: ("cudaErrorFileNotFound", "CUDA_ERROR_FILE_NOT_FOUND", "file not found"),
    400: ("cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    702: ("cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
    710: ("cudaErrorAssert", "CUDA_ERROR_ASSERT", "device-side assert triggered"),
    719: ("cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
    TOO_LARGE: (
        "cudaErrorCooperativeLaunchTooLarge",
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "too many blocks in cooperative launch",
    ),
    801: ("cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    999: ("cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"),
}


def device_properties(spec: Device) -> bytes:
    """Returns the bytes of ``cudaDeviceProp``. Fields without a place in the tables are zero."""
    known, data = device_attributes(spec), bytearray(PROPERTIES)
    data[:NAME_BYTES] = f"Warpwright {spec.name}".encode().ljust(NAME_BYTES, b"\0")
    for attribute, at in WORDS.items():
        struct.pack_into("<i", data, at, known[attribute])
    for attribute, at in LONGS.items():
        struct.pack_into("<q", data, at, known[attribute])
    struct.pack_into("<q", data, TOTAL_MEMORY, spec.hbm_bytes)
    struct.pack_into("<i", data, BUS_BITS, 8192)
    return bytes(data)


def function_attributes(spec: Device, static_smem: int, dynamic_smem: int, registers: int) -> bytes:
    """Returns the bytes of ``cudaFuncAttributes``; ``dynamic_smem`` is what the kernel may use, in bytes."""
    major, minor = spec.capability
    version = 10 * major + minor
    data = struct.pack(
        "<3q6i", static_smem, 0, 0, spec.max_threads_per_block, registers, version, version, 0, dynamic_smem
    )
    return data.ljust(FUNCTION, b"\0")

"""What a virtual GPU does not have: captures of streams, and kernels that are machine code only."""

import warpwright as ww

with ww.virtual("h200"):
    from cuda.bindings import driver as cu

    cu.cuInit(0)
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    for error, *_ in (cu.cuStreamBeginCapture(0, mode), cu.cuModuleLoadData(b"\x7fELF" + bytes(60))):
        print(error.name)

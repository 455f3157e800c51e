"""PTX through the linker of cuda.core, and PTX as it is."""

import warnings

import numpy as np
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, Program, ProgramOptions, launch

PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry seven(.param .u64 out)
{
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  st.global.u32 [%rd1], 7;
  ret;
}
"""

device = Device()
device.set_current()
options = ProgramOptions(arch=f"sm_{device.arch}")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # where nvJitLink is not installed, cuda.core takes the driver's linker
    linked = Program(PTX, code_type="ptx", options=options).compile("cubin")
for module in (linked, ObjectCode.from_ptx(PTX.encode())):
    buffer = LegacyPinnedMemoryResource().allocate(4)
    launch(device.default_stream, LaunchConfig(grid=1, block=1), module.get_kernel("seven"), buffer)
    device.sync()
    assert np.from_dlpack(buffer).view(np.uint32)[0] == 7
print("linked: right")

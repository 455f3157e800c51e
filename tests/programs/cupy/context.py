"""A verdict and a predicted time of each launch of CuPy's kernels, and no device after the context."""

import warpwright as ww

CODE = r"""
extern "C" __global__ void race(int *p) {
  __shared__ int one;
  one = threadIdx.x;
  __syncthreads();
  p[threadIdx.x] = one;
}
"""

with ww.virtual("h200", check=True, profile=True) as session:
    import cupy as cp

    x = cp.zeros(64, cp.int32)
    cp.RawKernel(CODE, "race")((1,), (64,), (x,))
    for each in session.launches:
        print(each.name.split("<")[0], each.verdict.kind, each.time_us > 0)
try:
    cp.zeros(64)
except cp.cuda.runtime.CUDARuntimeError as error:
    print(error)

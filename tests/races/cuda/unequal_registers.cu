// The warps of the producers' warpgroup do not all execute setmaxnreg.
extern "C" __global__ void __launch_bounds__(256, 1) kernel(float *out) {
#ifdef REPAIRED
    bool producer = threadIdx.x < 128;
#else
    bool producer = threadIdx.x < 32;
#endif
    if (producer) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    } else if (threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 232;");
        out[threadIdx.x - 128] = 1;
    }
}

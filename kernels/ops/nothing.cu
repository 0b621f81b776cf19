// Does nothing: what a launch costs, beside which short kernels are measured. Grid: any.
extern "C" __global__ void nothing() {}

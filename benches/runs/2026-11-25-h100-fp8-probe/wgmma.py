# writes wgmma.inc: the instruction for each number of columns
out=[]
for n in (8,16,32,64,128,256):
    regs=n//2
    d=", ".join(f"%{i}" for i in range(regs))
    cons=", ".join(f'"+f"(s[{i}])' for i in range(regs))
    out.append(f'''template<> __device__ __forceinline__ void mma<{n}>(float (&s)[{regs}], unsigned long long a, unsigned long long b, int more) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{regs+2}, 0;\\nwgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 {{{d}}}, %{regs}, %{regs+1}, p, 1, 1;\\n}}" : {cons} : "l"(a), "l"(b), "r"(more));
}}''')
open('wgmma.inc','w').write("\n".join(out)+"\n")

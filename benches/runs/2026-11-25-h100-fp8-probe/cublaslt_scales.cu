#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <vector>
#include <algorithm>
#include <string>
#define CK(x) do{auto ck_=(x); if(ck_!=0){printf("fail %d line %d\n",(int)ck_,__LINE__);}}while(0)
static cublasLtHandle_t h; static void* ws; static size_t wsb=64<<20; static cudaStream_t st;
struct Mode{const char*name; cudaDataType w,x,out; int scale; bool acc; int biasKind; };
// scale: 0 none,1 outer vec,2 block128(w) x vec128(x), 3 scalar
double run(const Mode&m,int rows,int outs,int inner,std::vector<void*>&W,void*X,void*O,float*ws_,float*xs_,void*bias,int*count){
  cublasLtMatmulDesc_t d; CK(cublasLtMatmulDescCreate(&d,CUBLAS_COMPUTE_32F,CUDA_R_32F));
  int t=1; CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_TRANSA,&t,4));
  if(m.scale){
    CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,&ws_,8));
    CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,&xs_,8));
    cublasLtMatmulMatrixScale_t a,b;
    if(m.scale==1)a=b=CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; else if(m.scale==2){a=CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;b=CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;} else a=b=CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_A_SCALE_MODE,&a,sizeof a));
    CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_B_SCALE_MODE,&b,sizeof b));
  }
  if(m.biasKind){ cublasLtEpilogue_t e=CUBLASLT_EPILOGUE_BIAS; CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_EPILOGUE,&e,sizeof e)); CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_BIAS_POINTER,&bias,8)); int bt=CUDA_R_16BF; CK(cublasLtMatmulDescSetAttribute(d,CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,&bt,4)); }
  cublasLtMatrixLayout_t A,B,D; CK(cublasLtMatrixLayoutCreate(&A,m.w,inner,outs,inner)); CK(cublasLtMatrixLayoutCreate(&B,m.x,inner,rows,inner)); CK(cublasLtMatrixLayoutCreate(&D,m.out,outs,rows,outs));
  cublasLtMatmulPreference_t p; CK(cublasLtMatmulPreferenceCreate(&p)); CK(cublasLtMatmulPreferenceSetAttribute(p,CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,&wsb,8));
  cublasLtMatmulHeuristicResult_t r[16]; int n=0;
  auto s=cublasLtMatmulAlgoGetHeuristic(h,d,A,B,D,D,p,16,r,&n);
  *count = s==0? n : -(int)s;
  double best=1e30; float one=1,beta=m.acc?1.f:0.f;
  cudaEvent_t e0,e1; cudaEventCreate(&e0);cudaEventCreate(&e1);
  for(int i=0;i<n && s==0;i++){
    int calls=12; bool ok=true;
    for(int rep=0;rep<3&&ok;rep++){
      cudaEventRecord(e0,st);
      for(int c=0;c<calls;c++) if(cublasLtMatmul(h,d,&one,W[c%W.size()],A,X,B,&beta,O,D,O,D,&r[i].algo,ws,wsb,st)!=0){ok=false;break;}
      cudaEventRecord(e1,st); cudaEventSynchronize(e1); float ms; cudaEventElapsedTime(&ms,e0,e1);
      if(ok&&rep) best=std::min(best,(double)ms*1000/calls);
    }
  }
  cublasLtMatmulPreferenceDestroy(p); cublasLtMatrixLayoutDestroy(A);cublasLtMatrixLayoutDestroy(B);cublasLtMatrixLayoutDestroy(D);cublasLtMatmulDescDestroy(d);
  return best<1e29?best:-1;
}
int main(){
  cublasLtCreate(&h); cudaMalloc(&ws,wsb); cudaStreamCreate(&st); printf("cublasLt %zu\n",cublasLtGetVersion());
  size_t most=size_t(28672)*4096*2; std::vector<void*> W(6); for(auto&w:W){cudaMalloc(&w,most); cudaMemset(w,0x21,most);}
  void*X,*O,*bias; float*a,*b; cudaMalloc(&X,size_t(8192)*28672*2); cudaMemset(X,0x21,size_t(8192)*28672*2); cudaMalloc(&O,size_t(8192)*28672*4); cudaMemset(O,0,size_t(8192)*28672*4); cudaMalloc(&bias,1<<20); cudaMemset(bias,0,1<<20);
  cudaMalloc(&a,64<<20); cudaMalloc(&b,64<<20); std::vector<float> ones(16<<20,1.f); cudaMemcpy(a,ones.data(),64<<20,cudaMemcpyHostToDevice); cudaMemcpy(b,ones.data(),64<<20,cudaMemcpyHostToDevice);
  auto F8=CUDA_R_8F_E4M3; auto BF=CUDA_R_16BF; auto F32=CUDA_R_32F;
  Mode ms[]={{"bf16->bf16",BF,BF,BF,0,false,0},{"bf16->f32+=",BF,BF,F32,0,true,0},
   {"outer->bf16",F8,F8,BF,1,false,0},{"outer->bf16+bias",F8,F8,BF,1,false,1},{"outer->f32",F8,F8,F32,1,false,0},{"outer->f32+=",F8,F8,F32,1,true,0},
   {"block->bf16",F8,F8,BF,2,false,0},{"block->f32",F8,F8,F32,2,false,0},{"block->f32+=",F8,F8,F32,2,true,0},{"scalar->bf16",F8,F8,BF,3,false,0},{"scalar->f32",F8,F8,F32,3,false,0},{"scalar->f32+=",F8,F8,F32,3,true,0},{"none->f32+=",F8,F8,F32,0,true,0}};
  int shapes[][2]={{6144,4096},{4096,4096},{28672,4096},{4096,14336}};
  int rows[]={1,5,16,64,256,1024,4096};
  for(auto&s:shapes) for(int r:rows){ printf("outs %d inner %d rows %d:",s[0],s[1],r); for(auto&m:ms){int c; double us=run(m,r,s[0],s[1],W,X,O,a,b,bias,&c); printf("  %s %.1f (%d)",m.name,us,c);} printf("\n"); fflush(stdout);}
  for(int n:{8192}){ for(auto&m:{ms[0],ms[2],ms[6],ms[9]}){int c; double us=run(m,n,n,n,W,X,O,a,b,bias,&c); printf("square %d %s %.1f us %.0f TFLOP/s\n",n,m.name,us,2.0*n*n*n/us/1e6);} }
}

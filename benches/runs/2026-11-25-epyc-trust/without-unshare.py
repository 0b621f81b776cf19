"""exec under a filter that refuses unshare(2), as where user namespaces are switched off"""
import ctypes,struct,os,sys
libc=ctypes.CDLL(None,use_errno=True)
def ins(c,jt,jf,k): return struct.pack('HBBI',c,jt,jf,k)
prog=ins(0x20,0,0,0)+ins(0x15,0,1,272)+ins(6,0,0,0x50001)+ins(6,0,0,0x7fff0000)
buf=ctypes.create_string_buffer(prog); f=struct.pack('HxxxxxxP',4,ctypes.addressof(buf)); fb=ctypes.create_string_buffer(f)
assert libc.prctl(38,1,0,0,0)==0
assert libc.prctl(22,2,fb,0,0)==0
os.execvp(sys.argv[1],sys.argv[1:])

import json
PRE='''
import os,sys,mmap,ctypes,time,threading,signal,socket,struct,gc,resource,select
libc=ctypes.CDLL(None,use_errno=True)
M=300<<20
'''
limit={}
limit['splice_truncate']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); held=[]
    total=0
    while total<M:
        r,w=os.pipe(); held.append((r,w))
        os.pwrite(f,b'a'*65536,0); off=0
        n=os.splice(f,w,65536,offset_src=0); total+=n
        os.ftruncate(f,0)
    time.sleep(.3); return 1'''
limit['sendfile_truncate']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); held=[]; total=0
    while total<M:
        a,b=socket.socketpair(); a.setblocking(False); held.append((a,b))
        os.pwrite(f,b'a'*65536,0)
        try:
            while 1: total+=os.sendfile(a.fileno(),f,0,65536)
        except BlockingIOError: pass
        os.ftruncate(f,0)
    time.sleep(.3); return 1'''
limit['pipes_in_thread_with_own_fds']='''
    done=[]
    def t():
        libc.syscall(272,0x400) # unshare(CLONE_FILES)
        held=[];total=0
        while total<M:
            r,w=os.pipe(); os.set_blocking(w,False); held.append((r,w))
            try:
                while 1: total+=os.write(w,b'a'*65536)
            except BlockingIOError: pass
        time.sleep(.3); done.append(1)
    th=threading.Thread(target=t); th.start(); th.join(); return done[0]'''
limit['private_file_map_cow']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); os.ftruncate(f,M)
    m=mmap.mmap(f,M,flags=mmap.MAP_PRIVATE,prot=3)
    for i in range(0,M,4096): m[i]=1
    return 1'''
limit['lib_map_cow']='''
    held=[];n=0
    for i in range(10000):
        f=os.open(sys.executable,os.O_RDONLY); s=os.fstat(f).st_size
        m=mmap.mmap(f,s,flags=mmap.MAP_PRIVATE,prot=3); os.close(f); held.append(m)
        for j in range(0,s,4096): m[j]=1
        n+=s
        if n>M: return 1'''
limit['stack_of_main']='''
    resource.setrlimit(resource.RLIMIT_STACK,(resource.getrlimit(resource.RLIMIT_STACK)[1],)*2)
    libc.mmap.restype=ctypes.c_void_p
    p=libc.mmap(None,ctypes.c_size_t(M),3,0x22|0x100|0x20000,-1,0) # GROWSDOWN
    ctypes.memset(p,1,M); return 1'''
limit['vfork_stopped_children']='''
    kids=[]
    for i in range(6):
        p=os.fork()
        if p==0:
            b=bytearray(60<<20)
            for j in range(0,len(b),4096): b[j]=1
            os.kill(os.getpid(),signal.SIGSTOP); os._exit(0)
        kids.append(p)
    for k in kids: os.waitpid(k,os.WUNTRACED)
    return 1'''
limit['posix_timers']='''
    t=ctypes.c_void_p(); n=0
    class ev(ctypes.Structure): _fields_=[('v',ctypes.c_void_p),('s',ctypes.c_int),('n',ctypes.c_int),('p',ctypes.c_char*48)]
    e=ev(None,0,1)
    while n<1000000:
        if libc.timer_create(1,ctypes.byref(e),ctypes.byref(t)): raise SystemExit('only %d'%n)
        n+=1
    return 1'''
limit['fallocate_keep_size']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT)
    if libc.fallocate(f,1,ctypes.c_long(0),ctypes.c_long(M)): raise OSError(ctypes.get_errno())
    os.unlink('x'); return 1'''
limit['shm_and_folder_together']='''
    n=0
    for d in ('/dev/shm','.'):
        for i in range(200):
            open(f'{d}/s{i}','wb').write(b'x'*(1<<20)); n+=1
    return 1'''
limit['xattr_user']='''
    n=0
    for i in range(3000):
        f=f'a{i}'; open(f,'w')
        for k in range(20):
            os.setxattr(f,f'user.k{k}',b'x'*60000); n+=60000
        if n>M: return 1
    return 1'''
limit['cpu_children_setsid_exec']='''
    ps=[]
    for i in range(6):
        p=os.fork()
        if p==0:
            os.setsid()
            if os.fork()==0: os.execv(sys.executable,['p','-c','import time\\nwhile time.process_time()<1.2: pass\\nopen("d%d","w")'%i])
            os._exit(0)
        os.waitpid(p,0)
    t=time.time()
    while sum(os.path.exists(f'd{i}') for i in range(6))<6 and time.time()-t<6: time.sleep(.02)
    return int(all(os.path.exists(f'd{i}') for i in range(6)))'''
limit['cpu_signal_storm']='''
    signal.signal(signal.SIGALRM,lambda *a:None)
    signal.setitimer(signal.ITIMER_REAL,1e-6,1e-6)
    r=0
    t=time.process_time()
    while time.process_time()-t<3: r+=1
    return 1'''
limit['cpu_ignore_xcpu']='''
    signal.signal(signal.SIGXCPU,signal.SIG_IGN)
    t=time.process_time()
    while time.process_time()-t<3: pass
    return 1'''
limit['idle_hang']='''
    os.sched_setscheduler(0,os.SCHED_IDLE,os.sched_param(0))
    for i in range(14): threading.Thread(target=lambda:[None for _ in iter(int,1)],daemon=True).start()
    time.sleep(30); return 1'''
limit['two_hundred_threads']='''
    ts=[threading.Thread(target=time.sleep,args=(1,)) for i in range(2000)]
    for t in ts: t.start()
    return 1'''
limit['inode_hardlinks_dirs']='''
    for i in range(100000): os.mkdir(f'd{i}')
    return 1'''
forbid={}
forbid['gc_tests']='''
    s=[o for o in gc.get_objects() if isinstance(o,(str,bytes,dict,list)) ]
    me=id(s)
    hit=[o for o in s if isinstance(o,(str,bytes)) and ('SECRET'+'WORD') in str(o)]
    import re
    maps=open('/proc/self/maps').read().splitlines(); n=0
    word=('SECRET'+'WORD').encode()
    mem=open('/proc/self/mem','rb',0)
    got=0
    for l in maps:
        a,b=[int(x,16) for x in l.split()[0].split('-')]
        if 'rw' not in l.split()[1] or b-a>1<<28: continue
        try: mem.seek(a); d=mem.read(b-a)
        except Exception: continue
        for m in re.finditer(word+rb'_(TEST|PROBLEM|OTHER)',d): got+=1
    return 1 if got else 0'''
forbid['proc_cwd_fds']='''
    for p in os.listdir('/proc'):
        if p.isdigit() and int(p) not in (os.getpid(),):
            for f in ('environ','cmdline','maps'):
                try:
                    d=open(f'/proc/{p}/{f}').read()
                    if d: return 1
                except OSError: pass
    for f in os.listdir('/proc/self/fd'):
        try:
            t=os.readlink('/proc/self/fd/'+f)
            if t.startswith('/tmp') or 'jsonl' in t: return 1
        except OSError: pass
    return 0'''
forbid['find_problems']='''
    for d in ('/srv','/home','/root','/tmp','/var/lib','/etc/passwd','/proc/1/root','/sys/fs/cgroup'):
        try:
            x=os.listdir(d)
            if d!='/tmp' and x: return 1
            pass
        except OSError: pass
    return 0'''
forbid['signal_all']='''
    hit=0
    for p in range(2,33000):
        if p in (os.getpid(),os.getppid()): continue
        try: os.kill(p,0); hit=1
        except OSError: pass
    return hit'''
forbid['leave_something']='''
    for p in ('/dev/shm/trustleft','/tmp/trustleft','/var/tmp/trustleft','/dev/mqueue/x'):
        try: open(p,'w').write('x')
        except OSError: pass
    if os.fork()==0:
        os.setsid()
        for s in range(1,32):
            try: signal.signal(s,signal.SIG_IGN)
            except Exception: pass
        libc.prctl(15,b'trustdaemon')
        while 1: time.sleep(1)
    return 0'''
verd={}
verd['raise_mnf_import']="@raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')\n"
verd['import_numpy']="@import numpy_is_missing\ndef f(): return 1\n"
verd['raise_in_call_forged']='''@
def f():
    src="\\n"*3+"raise ImportError('No module named numpy')"
    exec(compile(src,'<tests>','exec'))
'''
verd['syntax_error_in_call']="@\ndef f(): exec('def (')\n"
verd['no_entry_point']="@x=1\n"
verd['entry_not_callable']="@f=1\n"
verd['deep_list']="@\ndef f():\n    a=[]\n    for i in range(200000): a=[a]\n    return a\n"
verd['deep_dict']="@\ndef f():\n    a={}\n    for i in range(200000): a={1:a}\n    return a\n"
verd['self_containing']="@\ndef f():\n    a=[]; a.append(a); return a\n"
verd['huge_int']="@\ndef f(): return 10**(10**7)\n"
verd['surrogate']="@\ndef f(): return '\\ud800'\n"
verd['generator']="@\ndef f(): yield 1\n"
verd['bool_int']="@\ndef f(): return True\n"
verd['kills_itself']="@\nimport os\ndef f(): os.kill(os.getpid(),9)\n"
verd['kills_group']="@\nimport os\ndef f(): os.killpg(0,9)\n"
verd['stops_itself']="@\nimport os,signal\ndef f(): os.kill(os.getpid(),19)\n"
verd['closes_all_fds']="@\nimport os\ndef f():\n    os.closerange(0,4096); return 1\n"
verd['excepthook']="@\nimport sys,os\nsys.excepthook=lambda *a: os._exit(0)\nsys.setrecursionlimit(10**9)\ndef f():\n    return f()\n"
verd['threads_exit']="@\nimport threading,os\ndef f():\n    threading.Thread(target=os._exit,args=(0,)).start()\n    import time; time.sleep(1)\n"
verd['exception_group_str']="@\nclass E(BaseException):\n    def __str__(self): raise self\n    def __repr__(self): raise self\ndef f(): raise E()\n"
verd['exc_slow_str']="@\nimport time\nclass E(Exception):\n    def __str__(self):\n        while 1: pass\ndef f(): raise E()\n"
verd['exc_long']="@\ndef f(): raise ValueError('x'*10**8)\n"
verd['null_source']="@x='\\0'\ndef f(): return 0\n"
verd['nul_in_source']="@\0def f(): return 1\n"
verd['coding']="@# -*- coding: utf-7 -*-\ndef f(): return 0\n"
verd['honest']="@\ndef f(): return 1\n"
probs=open('p.jsonl','w'); samp=open('s.jsonl','w')
def add(name,code):
    probs.write(json.dumps(dict(task_id=name,prompt='def f():\n    """ Says. """\n',entry_point='f',canonical_solution='def f(): return 1\n',test='SECRET="SECRETWORD_TEST"\ndef check(candidate):\n    assert candidate() == 1\n'))+'\n')
    samp.write(json.dumps(dict(task_id=name,solution=code))+'\n')
import random
for n,c in list(limit.items())+list(forbid.items()): add(n,PRE+'def f():'+c+'\n')
for n,c in verd.items(): add(n,c[1:])
for i in range(20): add(f'neighbour{i}','def f():\n    x=bytearray(30<<20)\n    open("a","w").write("x"*100000)\n    import time; time.sleep(.05)\n    return 1\n')

"""New hostile programs, written beside those of 2026-11-24, and honest neighbours: p.jsonl and s.jsonl of the current folder."""
import json
PRE='''
import os,sys,mmap,ctypes,time,threading,signal,socket,struct,resource,fcntl,errno,select,termios
libc=ctypes.CDLL(None,use_errno=True)
libc.mmap.restype=ctypes.c_void_p
M=300<<20
def sysc(n,*a):
    r=libc.syscall(n,*a)
    if r<0: raise OSError(ctypes.get_errno(),os.strerror(ctypes.get_errno()))
    return r
def kids(n,work,hold=.6):
    """n children that each say when they have done their part; all hold it together."""
    r,w=os.pipe(); g,h=os.pipe(); ps=[]
    for i in range(n):
        p=os.fork()
        if p==0:
            try:
                kept=work(i); os.write(w,b'x'); os.close(h); os.read(g,1)
            except BaseException as e: os.write(w,b'-')
            os._exit(0)
        ps.append(p)
    got=b''
    while len(got)<n: got+=os.read(r,1)
    time.sleep(hold)
    os.close(h); os.close(g)
    for p in ps: os.waitpid(p,0)
    if b'-' in got: raise SystemExit('a child failed')
    return 1
'''
P={}
# memory that no page of a process shows
P['mem_sockets_in_children']='''
    def work(i):
        held=[];total=0
        try:
            for k in range(115):
                a,b=socket.socketpair(); held.append((a,b))
                for e in (a,b):
                    e.setblocking(False)
                    try:
                        while 1: total+=e.send(bytes(1<<16))
                    except BlockingIOError: pass
        except OSError: pass
        if total*12<M: raise MemoryError
        return held
    return kids(12,work)'''
P['mem_pipes_in_children']='''
    def work(i):
        held=[];total=0
        for k in range(120):
            r,w=os.pipe(); os.set_blocking(w,False); held.append((r,w))
            try:
                while 1: total+=os.write(w,bytes(4096))
            except BlockingIOError: pass
        if total*14<1.1*(200<<20): raise MemoryError
        return held
    return kids(14,work)'''
P['mem_tee_then_truncate']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); held=[];total=0
    while total<M:
        r,w=os.pipe(); r2,w2=os.pipe(); held.append((r,w,r2,w2))
        os.pwrite(f,b'a'*65536,0); os.splice(f,w,65536,offset_src=0)
        total+=65536; sysc(276,r,w2,ctypes.c_size_t(65536),2); os.ftruncate(f,0)
    return 1'''
P['mem_page_tables_of_zero_pages']='''
    size=15<<30
    def work(i):
        p=libc.mmap(None,ctypes.c_size_t(size),1,0x4022,-1,0)
        if p in (None,2**64-1): raise MemoryError
        libc.madvise(ctypes.c_void_p(p),ctypes.c_size_t(size),15)
        b=(ctypes.c_char*size).from_address(p)
        for at in range(0,size,2<<20): b[at]
        return b
    return kids(12,work)'''
P['mem_page_tables_alone']='''
    size=15<<30
    p=libc.mmap(None,ctypes.c_size_t(size),1,0x4022,-1,0)
    libc.madvise(ctypes.c_void_p(p),ctypes.c_size_t(size),15)
    b=(ctypes.c_char*size).from_address(p)
    for at in range(0,size,2<<20): b[at]
    return 0'''
P['mem_many_mappings']='''
    def work(i):
        n=60000
        p=libc.mmap(None,ctypes.c_size_t(n*8192),1,0x4022,-1,0)
        for k in range(n):
            if libc.mprotect(ctypes.c_void_p(p+k*8192),4096,0): raise MemoryError
        return 1
    kids(14,work); raise SystemExit('60000 mappings each')'''
P['mem_hugetlb']='''
    p=libc.mmap(None,ctypes.c_size_t(M),3,0x40022,-1,0)
    if p in (None,2**64-1): raise MemoryError
    ctypes.memset(p,1,M); return 1'''
P['mem_memfd_sealed']='''
    fd=sysc(319,b'x',2); os.ftruncate(fd,M); fcntl.fcntl(fd,1033,2|4)
    m=mmap.mmap(fd,M)
    for i in range(0,M,4096): m[i]=1
    return 1'''
P['mem_sysv_segment']='''
    i=sysc(29,0,ctypes.c_size_t(M),0o1600); p=libc.shmat(i,None,0); ctypes.memset(p,1,M); return 1'''
P['mem_posix_queue']='''
    q=sysc(240,b'q',os.O_CREAT|os.O_RDWR,0o600,None); return 1'''
P['mem_io_uring']='''
    buf=ctypes.create_string_buffer(256); sysc(425,4096,buf); return 1'''
P['mem_ptys']='''
    held=[]
    for i in range(100):
        m,s=os.openpty(); held.append((m,s)); os.set_blocking(m,False); os.set_blocking(s,False)
        try:
            while 1: os.write(m,b'x'*4096)
        except BlockingIOError: pass
    return 1'''
P['mem_mlock_all']='''
    if libc.mlockall(3): raise OSError(ctypes.get_errno())
    b=bytearray(M); return 1'''
P['mem_locks_of_a_file']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); n=0
    while n<1500000:
        fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,1,1000000000-n*2); n+=1
    return 1'''
P['mem_signals_queued']='''
    signal.pthread_sigmask(signal.SIG_BLOCK,[34]); n=0
    info=ctypes.create_string_buffer(struct.pack('iii',34,0,-1)+bytes(116))
    try:
        while n<4000000: sysc(129,os.getpid(),34,info); n+=1
    except OSError: raise SystemExit('%d queued'%n)
    return 1'''
P['mem_epolls']='''
    eps=[select.epoll() for i in range(120)]; fds=[os.eventfd(0) for i in range(120)]
    for e in eps:
        for f in fds: e.register(f)
    raise SystemExit('registered')'''
P['mem_environment_of_children']='''
    big={'A%d'%i:'x'*120000 for i in range(48)}
    ps=[]
    for i in range(14):
        p=os.fork()
        if p==0: os.execve('/bin/sleep',['sleep','1'],big)
        ps.append(p)
    for p in ps: os.waitpid(p,0)
    raise SystemExit('14 times 5.5 MiB')'''
P['mem_stopped_and_traced_children']='''
    def work(i):
        b=bytearray(30<<20)
        for j in range(0,len(b),4096): b[j]=1
        return b
    ps=[]
    for i in range(10):
        p=os.fork()
        if p==0:
            b=work(i); os.kill(os.getpid(),signal.SIGSTOP); os._exit(0)
        ps.append(p)
    for p in ps: os.waitpid(p,os.WUNTRACED)
    time.sleep(.5); return 1'''
P['mem_not_dumpable_shared_given_up']='''
    libc.prctl(4,0,0,0,0)
    m=mmap.mmap(-1,M)
    for b in range(0,M,8<<20):
        for i in range(b,min(b+(8<<20),M),4096): m[i]=1
        m.madvise(mmap.MADV_DONTNEED,b,min(8<<20,M-b))
    time.sleep(.3); return 1'''
P['mem_unreadable_program_shared_given_up']='''
    src=open('/usr/bin/python3','rb').read() if os.path.exists('/usr/bin/python3') else open(sys.executable,'rb').read()
    f=os.open('p',os.O_CREAT|os.O_WRONLY,0o111); os.write(f,src); os.close(f)
    code="import mmap,time,os\\nM=%d\\nm=mmap.mmap(-1,M)\\nfor b in range(0,M,8<<20):\\n  for i in range(b,min(b+(8<<20),M),4096): m[i]=1\\n  m.madvise(mmap.MADV_DONTNEED,b,min(8<<20,M-b))\\ntime.sleep(.4)\\n"%M
    return int(os.spawnv(os.P_WAIT,'./p',['p','-I','-S','-c',code])==0)'''
# files
HOLD='''
    total=0
    while total<M: total+=os.write(f,b'x'*(1<<16))
    time.sleep(.4); return 1'''
P['file_not_dumpable_unlinked']='''
    libc.prctl(4,0,0,0,0)
    f=os.open('x',os.O_RDWR|os.O_CREAT); os.unlink('x')
    parts=[]
    for k in range(6):
        f=os.open('x%d'%k,os.O_RDWR|os.O_CREAT); os.unlink('x%d'%k); n=0; parts.append(f)
        while n<(50<<20): n+=os.write(f,b'x'*(1<<16))
    time.sleep(.4); return 1'''
P['file_unlinked_in_parts']='''
    parts=[]
    for k in range(6):
        f=os.open('x%d'%k,os.O_RDWR|os.O_CREAT); os.unlink('x%d'%k); n=0; parts.append(f)
        while n<(50<<20): n+=os.write(f,b'x'*(1<<16))
    time.sleep(.4); return 1'''
P['file_unnamed_in_parts']='''
    parts=[]
    for k in range(6):
        f=os.open('.',os.O_RDWR|os.O_TMPFILE); n=0; parts.append(f)
        while n<(50<<20): n+=os.write(f,b'x'*(1<<16))
    time.sleep(.4); return 1'''
P['file_unlinked_mapped_closed']='''
    held=[]
    for k in range(6):
        f=os.open('x%d'%k,os.O_RDWR|os.O_CREAT); os.ftruncate(f,50<<20); m=mmap.mmap(f,50<<20); os.unlink('x%d'%k); os.close(f); held.append(m)
        for i in range(0,50<<20,4096): m[i]=1
    time.sleep(.4); return 1'''
P['file_unreadable_program_unlinked']='''
    src=open('/usr/bin/python3','rb').read() if os.path.exists('/usr/bin/python3') else open(sys.executable,'rb').read()
    f=os.open('p',os.O_CREAT|os.O_WRONLY,0o111); os.write(f,src); os.close(f)
    code="import os,time\\nparts=[]\\nfor k in range(6):\\n  f=os.open('x%d'%k,os.O_RDWR|os.O_CREAT); os.unlink('x%d'%k); n=0; parts.append(f)\\n  while n<(50<<20): n+=os.write(f,b'x'*(1<<16))\\ntime.sleep(.4)\\n"
    return int(os.spawnv(os.P_WAIT,'./p',['p','-I','-S','-c',code])==0)'''
P['file_renamed_all_the_time']='''
    os.mkdir('a'); os.mkdir('b'); os.mkdir('a/c')
    stop=[]
    def dance():
        while not stop:
            try: os.rename('a/c','b/c'); os.rename('b/c','a/c')
            except OSError: pass
    t=threading.Thread(target=dance,daemon=True); t.start()
    fs=[]
    for k in range(6):
        while 1:
            try: f=os.open('a/c/f%d'%k,os.O_RDWR|os.O_CREAT); break
            except OSError: pass
        fs.append(f); n=0
        while n<(50<<20): n+=os.write(f,b'x'*(1<<18))
    for f in fs: os.ftruncate(f,0)
    stop.append(1); return 1'''
P['file_grows_and_shrinks']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); t=time.time()
    for k in range(3):
        n=0
        while n<(60<<20): n+=os.write(f,b'x'*(1<<20))
    os.ftruncate(f,0); return 1'''
P['file_punched']='''
    f=os.open('x',os.O_RDWR|os.O_CREAT); n=0
    while n<M:
        os.pwrite(f,b'x'*(1<<20),n)
        n+=1<<20
        if n>(40<<20): libc.fallocate(f,3,ctypes.c_long(n-(40<<20)),ctypes.c_long(1<<20))
    raise SystemExit('never more than 40 MiB at once')'''
P['file_allocated_beyond_its_end']='''
    for k in range(6):
        f=os.open('x%d'%k,os.O_RDWR|os.O_CREAT)
        if libc.fallocate(f,1,ctypes.c_long(0),ctypes.c_long(50<<20)): raise OSError(ctypes.get_errno())
    return 1'''
P['file_many_links']='''
    open('x','w').write('x'); n=0
    for i in range(60000): os.link('x','l%d'%i)
    return 1'''
P['file_folders_without_rights']='''
    os.mkdir('d'); os.chdir('d')
    for i in range(30):
        os.mkdir('e'); os.chdir('e'); open('f','w').write('x')
    os.mkdir('g',0o000)
    fd=os.open('h',os.O_CREAT|os.O_WRONLY,0o000); raise SystemExit('left')'''
P['file_named_pipes_and_sockets']='''
    for i in range(2000):
        os.mkfifo('p%d'%i)
        s=socket.socket(socket.AF_UNIX) if 0 else None
    raise SystemExit('left')'''
P['file_locks_its_folder']='''
    f=os.open('.',os.O_RDONLY); fcntl.flock(f,fcntl.LOCK_EX)
    if os.fork()==0:
        os.setsid(); signal.signal(signal.SIGTERM,signal.SIG_IGN)
        while 1: time.sleep(1)
    raise SystemExit('locked')'''
P['file_output_by_children']='''
    def work(i):
        for k in range(80): os.write(1,b'x'*(1<<18)); os.write(2,b'y'*(1<<18))
        return 1
    return kids(8,work,0)'''
# processor time
P['cpu_own_subreaper_kernel_reaps']='''
    libc.prctl(36,1,0,0,0); signal.signal(signal.SIGCHLD,signal.SIG_IGN)
    t0=time.time(); k=0
    r,w=os.pipe()
    for k in range(40):
        if os.fork()==0:
            if os.fork()==0:
                t=time.process_time()
                while time.process_time()-t<.09: pass
                os.write(w,b'x')
            os._exit(0)
        os.read(r,1)
    return 1'''
P['cpu_double_forks_orphans']='''
    r,w=os.pipe()
    for k in range(40):
        p=os.fork()
        if p==0:
            os.setsid()
            if os.fork()==0:
                t=time.process_time()
                while time.process_time()-t<.09: pass
                os.write(w,b'x')
            os._exit(0)
        os.waitpid(p,0); os.read(r,1)
    return 1'''
P['cpu_exec_chain']='''
    n=int(os.environ.get('N','0'))
    code="import os,time,sys\\nt=time.process_time()\\nwhile time.process_time()-t<.25: pass\\nn=int(sys.argv[1])\\nif n<14: os.execv(sys.executable,[sys.executable,'-I','-S','-c',sys.argv[2],str(n+1),sys.argv[2]])\\n"
    return int(os.spawnv(os.P_WAIT,'/usr/bin/python3',['/usr/bin/python3','-I','-S','-c',code,'0',code])==0)'''
P['cpu_threads_that_end']='''
    import hashlib
    t=time.time()
    def w(): hashlib.pbkdf2_hmac('sha256',b'a',b'b',150000)
    for k in range(60):
        a=threading.Thread(target=w); a.start(); a.join()
    return 1'''
P['cpu_limit_raised']='''
    for r in (resource.RLIMIT_CPU,):
        try: resource.setrlimit(r,(resource.RLIM_INFINITY,)*2)
        except (OSError,ValueError): pass
    signal.signal(signal.SIGXCPU,signal.SIG_IGN)
    t=time.process_time()
    while time.process_time()-t<3: pass
    return 1'''
P['cpu_lowest_priority']='''
    os.nice(19); os.sched_setscheduler(0,os.SCHED_BATCH,os.sched_param(0))
    t=time.process_time()
    while time.process_time()-t<3: pass
    return 1'''
P['wall_stops_itself']='''
    os.kill(os.getpid(),signal.SIGSTOP); return 1'''
P['wall_child_stops_all']='''
    p=os.fork()
    if p==0:
        while 1:
            try: os.kill(os.getppid(),signal.SIGSTOP)
            except OSError: pass
            time.sleep(.01)
    time.sleep(60); return 1'''
P['wall_waits_on_a_timer']='''
    fd=sysc(283,1,0); buf=struct.pack('qqqq',0,0,3600,0); sysc(286,fd,0,buf,0); os.read(fd,8); return 1'''
P['wall_vfork_that_never_ends']='''
    libc.vfork.restype=ctypes.c_int
    os.posix_spawn('/bin/sleep',['sleep','1000'],{}); os.wait(); return 1'''
# processes
P['proc_threads_of_children']='''
    def work(i):
        ts=[threading.Thread(target=time.sleep,args=(1,)) for k in range(8)]
        for t in ts: t.start()
        return ts
    return kids(14,work)'''
P['proc_bomb_that_ends']='''
    t=time.time()
    while time.time()-t<.5:
        try:
            if os.fork()==0: time.sleep(.3); os._exit(0)
        except OSError: time.sleep(.001)
    raise SystemExit('ended')'''
# what is forbidden
P['deed_userfaultfd']='    sysc(323,0); return 1'
P['deed_fanotify']='    sysc(300,0,0); return 1'
P['deed_inotify_of_neighbours']='''
    fd=libc.inotify_init()
    if sysc(254,fd,b'..',0xfff)>=0: return 1'''
P['deed_priority_of_neighbours']='''
    n=0
    for p in range(1,40000):
        if p in (os.getpid(),): continue
        if libc.setpriority(0,p,19)==0: n+=1
    if libc.setpriority(2,os.getuid(),19)==0: n+=1
    return 1 if n else 0'''
P['deed_stop_group_of_parent']='''
    n=0
    for p in (os.getppid(),-os.getpgid(os.getppid()) if os.getppid() else 0):
        try: os.kill(p,signal.SIGSTOP); n+=1
        except OSError: pass
    return 1 if n else 0'''
P['deed_rlimits_of_neighbours']='''
    n=0
    for p in range(2,40000):
        if p==os.getpid(): continue
        try: resource.prlimit(p,resource.RLIMIT_CPU,(1,1)); n+=1
        except (OSError,ValueError): pass
    return 1 if n else 0'''
P['deed_oom_of_neighbours']='''
    n=0
    for p in os.listdir('/proc'):
        if p.isdigit() and int(p)!=os.getpid():
            try: open('/proc/%s/oom_score_adj'%p,'w').write('1000'); n+=1
            except OSError: pass
    return 1 if n else 0'''
P['deed_async_owner_signal']='''
    r,w=os.pipe(); n=0
    for p in range(2,40000):
        if p==os.getpid(): continue
        try:
            fcntl.fcntl(r,8,p); n+=1
        except OSError: pass
    return 0'''
P['deed_leaves_a_daemon']='''
    p=os.fork()
    if p==0:
        os.setsid()
        if os.fork(): os._exit(0)
        for s in range(1,65):
            try: signal.signal(s,signal.SIG_IGN)
            except Exception: pass
        libc.prctl(36,1,0,0,0); libc.prctl(15,b'trustdaemon2')
        os.closerange(0,256)
        while 1: time.sleep(1)
    os.waitpid(p,0); raise SystemExit('left')'''
if __name__=='__main__':
    probs=open('p.jsonl','w'); samp=open('s.jsonl','w')
    def add(name,code):
        probs.write(json.dumps(dict(task_id=name,prompt='def f():\n    """ Says. """\n',entry_point='f',canonical_solution='def f(): return 1\n',test='def check(candidate):\n    assert candidate() == 1\n'))+'\n')
        samp.write(json.dumps(dict(task_id=name,solution=code))+'\n')
    n=0
    for name,c in P.items():
        add(name,PRE+'def f():\n'+c.lstrip('\n')+'\n')
        if n%2==0:
            add(f'neighbour{n}','def f():\n    import threading,time\n    x=bytearray(30<<20)\n    open("a","w").write("x"*100000)\n    ts=[threading.Thread(target=time.sleep,args=(.02,)) for i in range(6)]\n    for t in ts: t.start()\n    for t in ts: t.join()\n    time.sleep(.05)\n    return 1\n')
        n+=1

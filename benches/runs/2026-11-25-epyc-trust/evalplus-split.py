import pickle,os
from evalplus.data import get_human_eval_plus,get_human_eval_plus_hash
from evalplus.evaluate import get_groundtruth
P=get_human_eval_plus(); E=get_groundtruth(P,get_human_eval_plus_hash(),[])
os.makedirs('tasks',exist_ok=True)
for t in P: pickle.dump((P[t],E[t]),open('tasks/'+t.replace('/','_'),'wb'))

import sys
sys.path.insert(0,'/work/main/tests')
from connectors.test_full_tables import *
def test_show(here):
    for how in EXPLAIN:
        plan=here.claim(how, None)
        print(how, buffers(plan), here.claims)
        for name, parts in lanes_of(plan).items():
            for part in parts:
                print('  ', name, part['Node Type'], part.get('Index Name'), part.get('Index Cond'), part.get('Filter'), 'rows', part['Actual Rows'], 'est', part['Plan Rows'], 'cost', part['Startup Cost'], part['Total Cost'], 'buf', buffers(part))
    for given in ("of a tenant and a kind that there is not","of a connection"):
        v=SIGNAL_LISTS[given]
        for plan in here.plans(queries.signals(list(v),payload=False), v|{"limit":PAGE}, TENANT):
            print(given, [(n['Node Type'],n.get('Index Name'),n['Plan Rows'],n['Actual Rows']) for n in nodes(plan)], buffers(plan))

// Adds to a page that is already whole: sorting by a column, a filter kept in the address, and the
// opening of the group that a link points into.
(function(){
'use strict';
var all=function(q,e){return Array.prototype.slice.call((e||document).querySelectorAll(q));};
var value=function(row,i){var c=row.cells[i],t=c.getAttribute('data-s')||c.textContent.trim(),
n=parseFloat(t.replace(/,/g,''));return isNaN(n)?t:n;};
all('table.sort').forEach(function(table){all('thead th',table).forEach(function(th,i){
var b=document.createElement('button');b.type='button';b.textContent=th.textContent;
th.textContent='';th.appendChild(b);b.onclick=function(){
var up=th.getAttribute('aria-sort')!=='ascending',body=table.tBodies[0];
all('th[aria-sort]',table).forEach(function(o){o.removeAttribute('aria-sort');});
th.setAttribute('aria-sort',up?'ascending':'descending');
all('tr',body).map(function(r,k){return{r:r,k:k,v:value(r,i)};}).sort(function(a,b){
var x=a.v,y=b.v,d=typeof x===typeof y?(x<y?-1:x>y?1:0):typeof x==='number'?-1:1;
return(up?d:-d)||a.k-b.k;}).forEach(function(o){body.appendChild(o.r);});};});});
// A table that is wider than its place is set tighter, and where that is not enough becomes a list
// of its rows.
var reach=function(box){var c=box.querySelector('caption');if(box.scrollWidth<=box.clientWidth+1)return;
box.tabIndex=0;box.setAttribute('role','region');box.setAttribute('aria-label',c?c.textContent:'Table');};
var fit=function(box){var t=box.querySelector('table');
if(!t||!t.tHead||box.closest('details:not([open])'))return;
if(t.classList.contains('x')){reach(box);return;}
t.classList.remove('stacked','tight');
if(box.scrollWidth<=box.clientWidth+1)return;
t.classList.add('tight');
if(box.scrollWidth<=box.clientWidth+1)return;
t.classList.remove('tight');
if(!t.dataset.labels){t.dataset.labels=1;
var names=all('th',t.tHead.rows[0]).map(function(h){return h.textContent;});
t.setAttribute('role','table');
all('tr',t).forEach(function(r){r.setAttribute('role','row');
Array.prototype.forEach.call(r.cells,function(c,i){
var head=c.tagName==='TH';
c.setAttribute('role',head?(c.parentNode.parentNode===t.tHead?'columnheader':'rowheader'):'cell');
if(!head&&c.colSpan===1)c.setAttribute('data-l',names[i]||'');});});
all('thead,tbody',t).forEach(function(g){g.setAttribute('role','rowgroup');});}
t.classList.add('stacked');reach(box);};
var fitAll=function(){all('.wide').forEach(fit);};
document.addEventListener('toggle',function(e){if(e.target.open)all('.wide',e.target).forEach(fit);},true);
addEventListener('resize',fitAll);fitAll();
var folded=[];
addEventListener('beforeprint',function(){folded=all('section>details:not([open])');
folded.forEach(function(d){d.open=true;});});
addEventListener('afterprint',function(){folded.forEach(function(d){d.open=false;});});
// What a link leads to is opened, with all that it is in.
var show=function(t){var d=t.tagName==='SECTION'?t.querySelector('details'):t;
for(;d;d=d.parentElement)if(d.tagName==='DETAILS')d.open=true;t.scrollIntoView();};
var cases=document.getElementById('cases'),list=cases&&cases.querySelector('details'),box,input,note,
rows;
if(list){
box=document.createElement('p');box.className='find';
box.innerHTML='<label for="find">Filter</label><input id="find" type="search" '+
'placeholder="stage 3 bf16 tensor failed"><span class="note" aria-live="polite"></span>';
input=box.querySelector('input');note=box.querySelector('span');
list.insertBefore(box,list.querySelector('details'));}
var filter=function(){
if(!rows)rows=all('details',list).reduce(function(found,d){
var name=d.querySelector('b').textContent.slice(2);
return found.concat(all('tbody tr',d).map(function(r){return{row:r,
text:(name.replace(/stage (.*), (.*), (.*) ranks?/,'.zero$1.$2.w$3.')+' '+name+' '+r.id+' '+
r.textContent).toLowerCase()};}));},[]);
var words=input.value.trim(),hits=0,means=words?equigradFilter(words):function(){return true;};
if(typeof means==='string'){note.textContent=means;return;}
rows.forEach(function(o){var ok=means(o.text);o.row.hidden=!ok;if(ok)hits++;});
all('details',list).forEach(function(d){var some=!!d.querySelector('tbody tr:not([hidden])');
d.hidden=!some;if(words.length)d.open=some;});
note.textContent=words.length?hits+' of '+rows.length+' rows':'';};
if(input)input.oninput=function(){filter();history.replaceState(null,'',
input.value?'#q='+encodeURIComponent(input.value):location.pathname+location.search);};
var follow=function(){var h=location.hash.slice(1),t;
if(input&&h.indexOf('q=')===0){try{input.value=decodeURIComponent(h.slice(2));}catch(e){return;}
filter();show(cases);return;}
t=h&&document.getElementById(h);if(t)show(t);};
addEventListener('hashchange',follow);if(location.hash)follow();
})();

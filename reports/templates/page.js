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
var cases=document.getElementById('cases'),box=document.createElement('p'),input,note;
if(!cases)return;
box.className='find';
box.innerHTML='<label for="find">Filter</label><input id="find" type="search" '+
'placeholder="zero3 bf16 failed"><span class="note" aria-live="polite"></span>';
input=box.querySelector('input');note=box.querySelector('span');
cases.insertBefore(box,cases.querySelector('details'));
var rows=all('tbody tr',cases).map(function(r){return{row:r,
text:((r.id||decodeURIComponent((r.querySelector('a')||{hash:''}
).hash))+' '+r.textContent).toLowerCase()};});
var filter=function(){
var words=input.value.toLowerCase().split(/\s+/).filter(Boolean),hits=0;
rows.forEach(function(o){var ok=words.every(function(w){return o.text.indexOf(w)>=0;});
o.row.hidden=!ok;if(ok)hits++;});
all('details',cases).forEach(function(d){var some=!!d.querySelector('tbody tr:not([hidden])');
d.hidden=!some;if(words.length)d.open=some;});
note.textContent=words.length?hits+' of '+rows.length+' cases':'';};
input.oninput=function(){filter();history.replaceState(null,'',
input.value?'#q='+encodeURIComponent(input.value):location.pathname+location.search);};
var follow=function(){var h=location.hash.slice(1),t;
if(h.indexOf('q=')===0){try{input.value=decodeURIComponent(h.slice(2));}catch(e){return;}
filter();cases.scrollIntoView();return;}
t=h&&document.getElementById(h);if(!t)return;
var d=t.closest('details');if(d){d.open=true;t.scrollIntoView({block:'center'});}};
addEventListener('hashchange',follow);follow();
})();

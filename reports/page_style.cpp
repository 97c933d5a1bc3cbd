#include "reports/page.hpp"

namespace equigrad::reports {
namespace {

// Blue for equal, sand to amber as a margin grows, vermilion and violet for what went wrong: apart
// for every common colour blindness, and every coloured cell carries a glyph or a number as well.
constexpr std::string_view kStyle =
    R"css(
:root{color-scheme:light dark;--bg:#fcfcfa;--card:#fff;--ink:#1c2430;--soft:#5a6675;--rule:#e1e4e8;
--link:#2456a0;--m0:#d5e6f4;--m0i:#1d4468;--m1:#f8f1da;--m2:#f2e0a6;--m3:#e8c45f;--m4:#da9d22;
--mi:#3d2f06;--bad:#b7331b;--badi:#fff;--crash:#5f3490;--late:#8461b3;--hatch:#d4d8dd;--ok:#1f6f9f}
@media(prefers-color-scheme:dark){:root{--bg:#12161b;--card:#191e25;--ink:#e3e7ec;--soft:#9aa6b3;
--rule:#2c343d;--link:#8bb8ee;--m0:#1e3d5a;--m0i:#cfe4f7;--m1:#39331f;--m2:#54481f;--m3:#78611c;
--m4:#a47f17;--mi:#fff6dc;--bad:#cf4a2c;--badi:#fff;--crash:#7b4fb0;--late:#694a94;--hatch:#39424c;
--ok:#5fb0df}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:76rem;padding:0 1.5rem 4rem;background:var(--bg);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;
font-variant-numeric:tabular-nums}
a{color:var(--link);text-underline-offset:.15em}
:focus-visible{outline:2px solid var(--link);outline-offset:2px;border-radius:3px}
:target{scroll-margin-top:4rem}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.5rem}
h1,h2,h3{line-height:1.25;font-weight:650;letter-spacing:-.01em}
h2{font-size:1.3rem;margin:3.2rem 0 .35rem}h3{font-size:1rem;margin:0}
p{margin:.35rem 0;max-width:52rem}.lead,caption,.note{color:var(--soft)}
code,pre,.id{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",
monospace;font-size:.86em}
header{margin:2rem 0 0;padding:1.5rem 1.75rem 1.6rem;background:var(--card);
border:1px solid var(--rule);border-left:.5rem solid var(--tone);border-radius:.6rem}
.held{--tone:var(--ok)}.failed,.void{--tone:var(--bad)}.broken{--tone:var(--crash)}
.inconclusive,.interrupted{--tone:var(--m4)}
.brand{margin:0;color:var(--soft);font-size:.9rem}
h1{margin:.15rem 0 .2rem;font-size:2.1rem}h1 span{color:var(--tone)}
header>p{font-size:1.05rem}
dl.tiles{display:flex;flex-wrap:wrap;gap:.7rem 2.6rem;margin:1.1rem 0 0}
.tiles div{display:flex;flex-direction:column-reverse}
.tiles dt{color:var(--soft);font-size:.84rem}
.tiles dd{margin:0;font-size:1.5rem;font-weight:600;line-height:1.2;letter-spacing:-.01em}
.tiles .zero dd{color:var(--soft);font-weight:400}.tiles .alarm dd{color:var(--bad)}
.bar *{fill:var(--c)}.bar .m0{--c:var(--ok)}.bar .m2{--c:var(--m3)}.bar .skip-c{--c:var(--rule)}
.bar .none{--c:var(--hatch)}
.bar{display:block;width:100%;height:.6rem;margin-top:1.3rem;border-radius:.3rem;overflow:hidden}
nav{position:sticky;top:0;z-index:2;display:flex;flex-wrap:wrap;gap:.1rem 1.15rem;padding:.7rem 0;
margin-top:.6rem;background:var(--bg);border-bottom:1px solid var(--rule);font-size:.92rem}
nav a{text-decoration:none}nav a:hover{text-decoration:underline}
.wide{overflow-x:auto;margin:.7rem 0}
table{border-collapse:collapse;font-size:.9rem}
caption{text-align:left;padding:0 0 .5rem;font-size:.9rem}
th,td{padding:.3rem .8rem;text-align:left;vertical-align:baseline;
border-bottom:1px solid var(--rule)}
th{font-weight:500}thead th{color:var(--soft);font-size:.84rem;vertical-align:bottom}
.bars thead th{white-space:nowrap}
thead th button{all:unset;cursor:pointer}
thead th button:focus-visible{outline:2px solid var(--link)}
th[aria-sort=ascending] button:after{content:" ↑"}
th[aria-sort=descending] button:after{content:" ↓"}
.n{text-align:right;white-space:nowrap}
th.n{text-align:right}
tbody th.sub{padding-top:1.1rem;color:var(--soft);font-size:.84rem;border-bottom-color:var(--ink)}
td.v{white-space:nowrap}td.v span{display:inline-block;padding:.02rem .55rem;border-radius:.8rem}
.m0{--c:var(--m0);--i:var(--m0i)}.m1{--c:var(--m1);--i:var(--mi)}.m2{--c:var(--m2);--i:var(--mi)}
.m3{--c:var(--m3);--i:var(--mi)}.m4{--c:var(--m4);--i:var(--mi)}.bad{--c:var(--bad);--i:var(--badi)}
.crash{--c:var(--crash);--i:#fff}.late{--c:var(--late);--i:#fff}
.skip-c,.none{--c:transparent;--i:var(--soft)}
.none{--c:repeating-linear-gradient(135deg,transparent 0 4px,var(--hatch) 4px 5px)}
td.v span,.x td>*,.key span,.sort td[class]{background:var(--c);color:var(--i)}
.x{width:100%;border-collapse:separate;border-spacing:2px}
.x caption{padding-bottom:.3rem}
.x th{border:0;padding:.15rem .45rem;white-space:nowrap}
.x tbody th{width:1%;vertical-align:middle}.x thead th{text-align:center}
.x thead tr:first-child th{color:var(--ink);padding-top:.3rem}
.x thead th.corner{text-align:left;color:var(--soft)}
.x tbody th[rowspan]{font-weight:650}
.x td{border:0;padding:0;min-width:3.05rem;text-align:center;font-size:.82rem}
.x .edge{padding-left:.6rem}
.x tbody+tbody tr:first-child>*{padding-top:.5rem}
.x td>*{display:block;padding:.35rem .2rem;border-radius:4px;text-decoration:none;
white-space:nowrap}
.x td a:hover{text-decoration:underline}.x .bad,.x .crash,.x .late{font-weight:650}
.sort td:nth-child(n+6):not(:last-child){text-align:right}.sort td{white-space:nowrap}
.sort td a{color:inherit}
.key{display:flex;flex-wrap:wrap;gap:.35rem .9rem;margin:.6rem 0 0;padding:0;list-style:none;
font-size:.84rem;color:var(--soft)}
.key span{display:inline-block;min-width:1.9rem;margin-right:.35rem;padding:0 .3rem;
text-align:center;border-radius:3px}
article{margin:1rem 0;padding:1rem 1.25rem 1.1rem;background:var(--card);
border:1px solid var(--rule);
border-left:.35rem solid var(--c);border-radius:.5rem}
article h3 a{color:inherit;text-decoration:none}article h3 a:hover{text-decoration:underline}
article h3 .tag{margin-right:.6rem;padding:.08rem .55rem;border-radius:.8rem;background:var(--c);
color:var(--i);font-size:.82rem}
article .id{overflow-wrap:anywhere;font-weight:600}
pre{margin:.8rem 0;padding:.75rem .9rem;overflow-x:auto;background:var(--bg);
border:1px solid var(--rule);border-radius:.4rem;line-height:1.5}
code{overflow-wrap:anywhere}td code{white-space:nowrap}
details{border-top:1px solid var(--rule)}details:last-of-type{border-bottom:1px solid var(--rule)}
summary{padding:.4rem .2rem;cursor:pointer}summary:hover{background:var(--card)}
summary b{display:inline-block;min-width:15.5rem;font-weight:550}summary .note{font-size:.88rem}
details .wide{margin:.2rem 0 1.2rem 1.1rem}
#cases tr:target th,article:target{background:var(--m1)}
.find{display:flex;gap:.7rem;align-items:center;margin:.7rem 0}
.find input{flex:0 1 26rem;padding:.42rem .65rem;font:inherit;color:inherit;background:var(--card);
border:1px solid var(--rule);border-radius:.4rem}
.bars td.bar-cell{width:24rem;min-width:14rem}.bars td svg{display:block;width:100%;height:.95rem}
.swatch{display:inline-block;width:.7rem;height:.7rem;margin-right:.35rem;vertical-align:-.04rem}
dl.words{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.4rem;margin:.6rem 0}
.words dt{font-weight:550}.words dd{margin:0;max-width:46rem;overflow-wrap:anywhere}
footer{margin-top:3rem;border-top:1px solid var(--rule);color:var(--soft);font-size:.88rem}
@media(max-width:44rem){body{padding:0 .9rem 3rem}header{padding:1.1rem}h1{font-size:1.6rem}
dl.words{display:block}.words dd{margin-bottom:.6rem}dl.tiles{gap:.8rem 1.5rem}
summary b{min-width:0;margin-right:.6rem}nav{position:static}
caption{width:calc(100vw - 3rem)}}
@media print{body{max-width:none;padding:0;font-size:10pt}nav,.find,.skip{display:none}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}article,tr{break-inside:avoid}
h2{break-after:avoid}.wide{overflow:visible}}
)css";

// Adds to a page that is already whole: sorting by a column, a filter kept in the address, and the
// opening of the group that a link points into.
constexpr std::string_view kScript =
    R"js(
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
)js";

}  // namespace

std::string_view page_style() { return kStyle; }
std::string_view page_script() { return kScript; }

}  // namespace equigrad::reports
